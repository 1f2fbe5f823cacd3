"""For kind `replaced`: small commands, what they read, and what each of it is replaced by."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet

from backbones.backbone import create
from backbones.checkpoints.exports import PRETRAIN, export

Files = dict[str, bytes]
ALIKE = ("--smoke", "--threads", "1", "--workers", "0", "--device", "cpu")
STEM = b"""import sys
from pathlib import Path

from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))


class Stem(nn.Module):
    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        import scaled_by_user

        self.proj, self.factor = nn.Conv2d(3, dim, patch, patch), 1.0 * scaled_by_user.FACTOR

    def forward(self, x: Tensor) -> Tensor:
        return (self.proj(x) * self.factor).tanh()
"""
HELPER = b"FACTOR = 1.0\n"
SWEEP = """
about: cells that read the same
steps:
  probe:
    run: knn
    backbone: tiny
    dataset: images.yaml
    options: {smoke: true, workers: 0, size: 32, resize: 32, other_k: [1], stem: my_stem.py:Stem, weights: random}
    grid: {k: [2, 3]}
  scored:
    run: knn
    backbone: tiny
    dataset: images.yaml
    options: {smoke: true, workers: 0, size: 32, resize: 32, other_k: [1], weights: given}
    grid: {k: [2, 3]}
"""


@dataclass(frozen=True)
class Subject:
    """A command, the files it is given in its working directory, and what may stand in the place of some of them."""

    name: str
    program: str
    words: tuple[str, ...]
    files: Files
    others: dict[str, Files]
    """By what is replaced, as messages must name it: the new files."""


def subjects(work: Path) -> list[Subject]:
    """Return all commands; weights are made in an empty folder."""
    weights = [_weights(work, seed) for seed in (0, 1)]
    folder, shown = _image_folder()
    stems = {"my_stem.py": STEM, "scaled_by_user.py": HELPER}
    edited = {
        "my_stem.py": {"my_stem.py": STEM.replace(b"1.0 *", b"3.0 *")},
        "scaled_by_user": {"scaled_by_user.py": b"FACTOR = 0.1\n"},
    }
    small = ("--backbone", "tiny", "--dataset", "images.yaml", "--size", "32", "--resize", "32", "--seeds", "0", "1")
    knn, fewshot = (
        ("knn", *small, "--k", "2", "--other-k", "1"),
        ("fewshot", *small, "--shots", "1", "2", "--draws", "2"),
    )
    reid = ("reid", "--backbone", "tiny", "--dataset", "people.yaml", "--epochs", "2", "--seeds", "0", "1")
    reid += ("--num-identities", "2", "--num-instances", "2", "--weights", "given")
    people, another = _market()
    listed, other_list = _msmt17()
    rows, other_rows = _parquet()
    coco, other_coco = _coco()
    swap = {"given": weights[1]}
    detect = ("detect", "--backbone", "tiny", "--dataset", "objects.yaml", "--epochs", "1", "--size", "64", "64")
    detect += ("--seeds", "0", "1", "--batch", "1", "--detector", "faster_rcnn_light")
    run = "transfer.run"
    return [
        Subject("knn", run, (*knn, "--stem", "my_stem.py:Stem"), folder | stems, edited | shown),
        Subject("fewshot", run, (*fewshot, "--weights", "given"), folder | weights[0], swap | shown),
        Subject("reid", run, reid, weights[0] | people, swap | another),
        Subject("lists", run, reid, weights[0] | listed, swap | other_list),
        Subject("rows", run, knn, rows, other_rows),
        Subject("detect", run, detect, coco, other_coco),
        Subject(
            "sweep",
            "transfer.sweep.__main__",
            ("cells.yaml", "--workers", "2", "--out", "out", "--device", "cpu"),
            {"cells.yaml": SWEEP.encode()} | folder | stems | weights[0],
            edited | shown | swap,
        ),
    ]


def _weights(work: Path, seed: int) -> Files:
    torch.manual_seed(seed)
    made = export(create("tiny"), work / f"weights-{seed}", {PRETRAIN: {"run": f"deit-of-seed-{seed}"}})
    return {f"given/{file.name}": file.read_bytes() for file in made.iterdir()}


def _image_folder() -> tuple[Files, dict[str, Files]]:
    """Classes of one colour each; the other image shows the other class, in as many bytes."""
    files: Files = {"images.yaml": b"name: images\nformat: image_folder\nroot: images\n"}
    for split, count in (("train", 6), ("val", 4)):
        for label, name in enumerate("ab"):
            for number in range(count):
                files[f"images/{split}/{name}/{number}.bmp"] = _image(number, label)
    other = {f"images/val/a/{number}.bmp": _image(number, 1) for number in range(4)}
    return files, {"images/val/a": other}


def _market() -> tuple[Files, dict[str, Files]]:
    files: Files = {"people.yaml": b"name: people\nformat: market1501\nroot: people\n"}
    for person in range(1, 5):
        for camera in (1, 2):
            name = f"{person:04d}_c{camera}s1_000451_03.bmp"
            files[f"people/bounding_box_train/{name}"] = _image(10 * person + camera, person, (32, 64))
            folder = "query" if camera == 1 else "bounding_box_test"
            files[f"people/{folder}/{name}"] = _image(10 * person + camera, person, (32, 64))
    changed = ("bounding_box_train/0001_c1", "query/0002_c1")
    others = {f"people/{start}": {f"people/{start}s1_000451_03.bmp": _image(99, 7, (32, 64))} for start in changed}
    return files, others


def _msmt17() -> tuple[Files, dict[str, Files]]:
    """Lists beside folders of images; the other list swaps two persons."""
    files: Files = {"people.yaml": b"name: people\nformat: msmt17\nroot: people\n"}
    lists: dict[str, list[str]] = {"train": [], "val": [], "query": [], "gallery": []}
    for person in range(4):
        for camera in (1, 2):
            name = f"{person:04d}/{person:04d}_{camera:03d}_{camera:02d}_0303morning_0008_0.bmp"
            for folder in ("train", "test"):
                files[f"people/{folder}/{name}"] = _image(10 * person + camera, person, (32, 64))
            lists["train" if person else "val"].append(f"{name} {person}")
            lists["query" if camera == 1 else "gallery"].append(f"{name} {person}")
    files |= {f"people/list_{name}.txt": "\n".join(lines).encode() for name, lines in lists.items()}
    swapped = "\n".join(line[:-1] + {"1": "2", "2": "1"}.get(line[-1], line[-1]) for line in lists["gallery"])
    return files, {"people/list_gallery": {"people/list_gallery.txt": swapped.encode()}}


def _parquet() -> tuple[Files, dict[str, Files]]:
    def table(labels: list[int]) -> bytes:
        images = [_image(number, number % 2) for number in range(len(labels))]
        stream = io.BytesIO()
        parquet.write_table(pa.table({"image": images, "label": labels}), stream, compression="none")
        return stream.getvalue()

    files: Files = {"images.yaml": b"name: rows\nformat: parquet\nroot: rows\nimage: image\nlabel: label\n"}
    files |= {"rows/train.parquet": table([0, 1] * 4), "rows/test.parquet": table([0, 1] * 3)}
    return files, {"rows/test.parquet": {"rows/test.parquet": table([1, 1, 0, 0, 1, 0])}}


def _coco() -> tuple[Files, dict[str, Files]]:
    def annotations(start: int, count: int, side: int) -> bytes:
        numbers = range(start, start + count)
        images = [{"id": number, "file_name": f"{number}.bmp", "width": 64, "height": 64} for number in numbers]
        boxes = [
            {"id": number, "image_id": number, "category_id": 1, "bbox": [8, 8, side, side], "iscrowd": 0}
            | {"area": side * side}
            for number in numbers
        ]
        return json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}).encode()

    files: Files = {"objects.yaml": b"name: objects\nformat: coco\nroot: objects\n"}
    files |= {f"objects/train2017/{number}.bmp": _image(number, 1, (64, 64)) for number in range(3)}
    files |= {f"objects/val2017/{number}.bmp": _image(number, 1, (64, 64)) for number in range(3, 5)}
    train, val = (f"objects/annotations/instances_{split}2017.json" for split in ("train", "val"))
    files |= {train: annotations(0, 3, 40), val: annotations(3, 2, 40)}
    others: dict[str, Files] = {
        "instances_train2017": {train: annotations(0, 3, 20)},
        "instances_val2017": {val: annotations(3, 2, 20)},
        "objects/train2017": {"objects/train2017/1.bmp": _image(99, 0, (64, 64))},
    }
    return files, others


def _image(seed: int, hue: int, size: tuple[int, int] = (32, 32)) -> bytes:
    """Return a BMP, as which all images of one size have as many bytes: noise of a colour."""
    noise = np.random.default_rng(seed).integers(0, 100, (size[1], size[0], 3), dtype=np.uint8)
    noise[..., hue % 3] += 50 * (1 + hue // 3)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "BMP")
    return stream.getvalue()
