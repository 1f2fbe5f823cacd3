"""For kind `bytes`: small datasets of each layout, and stored features."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from tasks.fewshot.features import Stored, read_features, write_features
from transfer.data.classification import open_classification
from transfer.data.coco.dataset import open_coco
from transfer.data.loading.read_image import read_image
from transfer.data.reid.dataset import open_reid
from transfer.data.spec import DatasetSpec

Made = tuple[Path, tuple[str, ...], Callable[[Path], Any]]
"""A folder, the names of those of its files that are changed, and what reads it."""
SUFFIXES = ("png", "jpg", "bmp", "webp", "ppm", "tiff")


@dataclass(frozen=True)
class Found:
    """What was read of a dataset: the values behind scores, and the digest by which runs know it."""

    values: list[Any]
    digest: str


def image_folder(work: Path) -> Made:
    """Images in every format that is read; the classes are folders."""
    root = work / "images"
    for number, suffix in enumerate(SUFFIXES):
        for place, (split, name) in enumerate(product(("train", "val"), ("a", "b"))):
            draw(root / split / name / f"{number}.{suffix}", 10 * number + place, red=100 * (name == "b"))
    return root, _files(root), lambda copy: _labelled("image_folder", copy)


def parquet_files(work: Path) -> Made:
    """A set in the columns that the hub's sets have."""
    root = work / "parquet"
    for place, split in enumerate(("train", "test"), start=3):
        draw(root / "one.png", place)
        content = (root / "one.png").read_bytes()
        (root / "one.png").unlink()
        parquet.write_table(pa.table({"image": [content] * 6, "label": [0, 1, 2] * 2}), root / f"{split}.parquet")
    return root, _files(root), lambda copy: _labelled("parquet", copy, image="image", label="label")


def stored_features(work: Path) -> Made:
    """A file of stored features, which is computed anew where it is damaged."""
    root = work / "features"
    root.mkdir()
    features = np.random.default_rng(0).random((16, 16), dtype=np.float32)
    write_features(root / "0.safetensors", Stored(np.arange(16), features, np.ones(16)), {})
    return (
        root,
        _files(root),
        lambda copy: [array.tobytes() for array in read_features(copy / "0.safetensors")],
    )


def market_folder(work: Path) -> Made:
    """Market-1501's layout: six people to train on, nine to find, distractors and junk."""
    root = work / "market"
    for split, identities, cameras in (
        ("bounding_box_train", range(1, 7), (1, 2, 3)),
        ("query", range(11, 20), (1,)),
        ("bounding_box_test", (-1, 0, *range(11, 20)), (2, 3, 4)),
    ):
        for identity, camera in product(identities, cameras):
            name = f"{identity:04d}" if identity >= 0 else "-1"
            seed = 1000 + 10 * identity + camera
            draw(root / split / f"{name}_c{camera}s1_{seed:06d}_01.jpg", seed, (40, 20), 6 * (identity % 20))

    def read(copy: Path) -> Found:
        found = open_reid(DatasetSpec(name="tiny", format="market1501", root=(str(copy),)), None)
        parts = (getattr(found, part) for part in ("train", "query", "gallery"))
        return Found([read_image(sample.path).tobytes() for part in parts for sample in part], found.digest)

    return root, _files(root), read


def coco_files(work: Path) -> Made:
    """Annotations beside the images of two splits."""
    root = work / "coco"
    (root / "annotations").mkdir(parents=True)
    boxes = [[10.0 * number, 5.0, 20.0, 30.0] for number in range(8)]
    objects = [
        {"id": number, "image_id": number % 3, "category_id": 1 + number % 2, "iscrowd": 0, "area": 600.0, "bbox": box}
        | {"segmentation": [[box[0], 5, box[0] + 20, 5, box[0] + 20, 35]]}
        for number, box in enumerate(boxes)
    ]
    images = [{"id": number, "file_name": f"{number}.jpg", "width": 120, "height": 90} for number in range(3)]
    kinds = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    text = json.dumps({"images": images, "annotations": objects, "categories": kinds})
    for split in ("train2017", "val2017"):
        (root / "annotations" / f"instances_{split}.json").write_text(text, encoding="utf-8")
        for number in range(3):
            draw(root / split / f"{number}.jpg", number, (90, 120))

    def read(copy: Path) -> Found:
        data = open_coco(DatasetSpec(name="tiny", format="coco", root=(str(copy),)), None)
        splits = [split for split in (data.train, data.val) if split is not None]
        values = [(data.classes, data.category_ids, data.dropped, [data.as_coco(split) for split in splits])]
        return Found([repr(values), [split.trained.tolist() for split in splits]], data.digest)

    return root, tuple(f"annotations/instances_{split}2017.json" for split in ("train", "val")), read


def draw(path: Path, seed: int, size: tuple[int, int] = (16, 8), red: int = 0) -> None:
    """Write noise as an image of so many rows and columns, redder by so much."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng([seed, *path.parent.name.encode()]).integers(0, 256, (*size, 3), dtype=np.uint8)
    noise[..., 0] = noise[..., 0] // 2 + red
    Image.fromarray(noise).save(path)


def _files(root: Path) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()))


def _labelled(kind: str, root: Path, **options: str) -> Found:
    data = open_classification(DatasetSpec(name="tiny", format=kind, root=(str(root),), options=options), None)
    values = [
        (split.name, int(split.labels[index]), hashlib.sha256(split.read(index).tobytes()).hexdigest())
        for split in (data.train, data.val)
        if split is not None
        for index in range(len(split))
    ]
    return Found([data.classes, *values], data.digest)
