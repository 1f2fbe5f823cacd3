"""For kind `bytes`: images, Parquet files, stored features, the names of Market-1501 and COCO's annotations."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from backbones.data.classification import ClassificationData, open_classification
from backbones.data.spec import DatasetSpec
from backbones.errors import UserError
from tasks.data.coco import open_coco
from tasks.data.reid import open_reid
from tasks.probing.shards import DamagedShard, encode_shard, read_shard, shard_seconds

Read = Callable[[Path], Any]
SUFFIXES = ("png", "jpg", "bmp", "webp", "ppm", "tiff")
FEATURES = 16


@dataclass(frozen=True)
class Found:
    """What was read of a data set: the values behind scores, and the digest by which runs know it."""

    values: list[Any]
    digest: str


def image_folder(work: Path) -> tuple[Path, tuple[str, ...], Read]:
    """Images in every format that is read; the classes are folders."""
    names = []
    for number, suffix in enumerate(SUFFIXES):
        for split, name in (("train", "a"), ("val", "a"), ("train", "b"), ("val", "b")):
            file = work / "images" / split / name / f"{number}.{suffix}"
            draw(file, number)
            names.append(str(file.relative_to(work / "images")))
    return work / "images", tuple(names), lambda copy: _read(_opened("image_folder", copy))


def parquet_files(work: Path) -> tuple[Path, tuple[str, ...], Read]:
    """A set in the columns that the hub's sets have."""
    (work / "parquet").mkdir()
    for split in ("train", "test"):
        draw(work / "one.png", 3)
        content = (work / "one.png").read_bytes()
        rows = pa.table({"image": [content] * 6, "label": [0, 1, 2] * 2})
        parquet.write_table(rows, work / "parquet" / f"{split}.parquet")

    def read(copy: Path) -> Found:
        return _read(_opened("parquet", copy, image="image", label="label"))

    return work / "parquet", ("train.parquet", "test.parquet"), read


def feature_shard(work: Path) -> tuple[Path, tuple[str, ...], Read]:
    """A file of stored features, which is computed anew where it is damaged."""
    (work / "shard").mkdir()
    features = np.random.default_rng(0).random((FEATURES, FEATURES), dtype=np.float32)
    content = encode_shard(np.arange(FEATURES), features, 1.5)
    (work / "shard" / "0.safetensors").write_bytes(content)

    def read(copy: Path) -> str:
        try:
            rows, values = read_shard(copy / "0.safetensors")
            shard_seconds(copy / "0.safetensors")
        except DamagedShard as error:
            raise UserError(str(error)) from error
        return hashlib.sha256(rows.tobytes() + values.tobytes()).hexdigest()

    return work / "shard", ("0.safetensors",), read


def market_names(work: Path) -> tuple[Path, tuple[str, ...], Read]:
    """A list of names of images in the layout of Market-1501, written as files when it is read."""
    place = work / "names"
    place.mkdir()
    lines = [f"bounding_box_train/{identity:04d}_c{camera}s1_000451_03.jpg" for identity in (2, 7) for camera in (1, 2)]
    lines += [f"query/{identity:04d}_c1s1_000001_00.jpg" for identity in (3, 5)]
    lines += [f"bounding_box_test/{identity:04d}_c2s1_000002_00.jpg" for identity in (3, 5, 0)]
    (place / "names.txt").write_text("\n".join(lines))
    draw(work / "one.jpg", 1)
    image = (work / "one.jpg").read_bytes()

    def read(copy: Path) -> Found:
        root = copy / "market"
        for split in ("bounding_box_train", "query", "bounding_box_test"):
            (root / split).mkdir(parents=True)
        for line in (copy / "names.txt").read_bytes().splitlines():
            folder, _, name = line.decode("utf-8", "surrogateescape").partition("/")
            if folder in ("bounding_box_train", "query", "bounding_box_test") and name and "/" not in name:
                try:
                    (root / folder / name).write_bytes(image)
                except (OSError, ValueError):
                    continue  # no file system takes such a name
        found = open_reid(DatasetSpec(name="tiny", format="market1501", root=(str(root),)), None)
        values = [
            (part, found.name_of(sample), sample.identity, sample.camera, found.read(sample.path).tobytes())
            for part in ("train", "query", "gallery")
            for sample in getattr(found, part)
        ]
        shutil.rmtree(root)
        return Found(values, found.digest)

    return place, ("names.txt",), read


def coco_files(work: Path) -> tuple[Path, tuple[str, ...], Read]:
    """Annotations beside the images of two splits."""
    (work / "coco" / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        for number in range(3):
            draw(work / "coco" / split / f"{number}.jpg", number, (90, 120))
        text = json.dumps(_annotations())
        (work / "coco" / "annotations" / f"instances_{split}.json").write_text(text, encoding="utf-8")

    def read(copy: Path) -> Found:
        data = open_coco(DatasetSpec(name="tiny", format="coco", root=(str(copy),)), None)
        splits = [split for split in (data.train, data.val) if split is not None]
        values = [(data.classes, data.category_ids, data.dropped, [data.as_coco(split) for split in splits])]
        return Found([repr(values), [split.trained.tolist() for split in splits]], data.digest)

    return work / "coco", tuple(f"annotations/instances_{split}2017.json" for split in ("train", "val")), read


def _annotations() -> dict[str, Any]:
    boxes = [[10.0 * number, 5.0, 20.0, 30.0] for number in range(8)]
    objects = [
        {
            **{"id": number, "image_id": number % 3, "category_id": 1 + number % 2, "iscrowd": 0, "area": 600.0},
            "bbox": box,
            "segmentation": [[box[0], 5, box[0] + 20, 5, box[0] + 20, 35]],
        }
        for number, box in enumerate(boxes)
    ]
    images = [{"id": number, "file_name": f"{number}.jpg", "width": 120, "height": 90} for number in range(3)]
    return {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]}


def draw(path: Path, seed: int, size: tuple[int, int] = (16, 8)) -> None:
    """Write noise as an image of so many rows and columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def _opened(kind: str, root: Path, **options: str) -> ClassificationData:
    return open_classification(DatasetSpec(name="tiny", format=kind, root=(str(root),), options=options), None)


def _read(data: ClassificationData) -> Found:
    assert data.train is not None
    assert data.val is not None
    values = [
        (split.name, int(split.labels[index]), hashlib.sha256(split.read(index).tobytes()).hexdigest())
        for split in (data.train, data.val)
        for index in range(len(split))
    ]
    return Found([data.classes, *values], data.digest)
