"""Small splits in COCO's format with objects that can be seen: rectangles of one color on black."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from backbones.backbone import create
from tasks.detect.detectors import build_detector
from tasks.detect.feature_maps import VitMapOptions, make_maps, quarters
from tasks.detect.learner import DetectionLearner
from tasks.detect.task import resolve_detector
from transfer.data.coco.annotations import read_coco_split
from transfer.data.coco.dataset import CocoData
from transfer.data.coco.split import CocoSplit

RED = (255, 0, 0)
CATEGORIES = {3: "cup", 7: "cow", 20: "car"}

Box = tuple[int, int, int, int]
"""x, y, width, height in pixels."""


def scene(size: tuple[int, int], *boxes: Box, color: tuple[int, int, int] = RED) -> Image.Image:
    """An image, (width, height), with rectangles that fill their boxes."""
    image = Image.new("RGB", size)
    for x, y, width, height in boxes:
        image.paste(color, (x, y, x + width, y + height))
    return image


def polygon(box: Box) -> list[list[int]]:
    """The segmentation that fills a box."""
    x, y, width, height = box
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


def an_object(box: Box, *, category: int = 7, **given: Any) -> dict[str, Any]:
    """An annotation, still without its ids."""
    area = float(box[2] * box[3])
    found = {"bbox": list(box), "category_id": category, "area": area, "iscrowd": 0, "segmentation": polygon(box)}
    return {name: value for name, value in {**found, **given}.items() if value is not None}


def described_split(folder: Path, entries: list[tuple[str, tuple[int, int], list[dict[str, Any]]]]) -> CocoSplit:
    """The split of (file name, stated (width, height), objects) of every image; writes the annotations alone."""
    images, objects = [], []
    for number, (name, (width, height), own) in enumerate(entries, start=1):
        images.append({"id": 100 + number, "file_name": name, "width": width, "height": height})
        for one in own:
            objects.append({**one, "id": len(objects) + 1, "image_id": 100 + number})
    categories = [{"id": number, "name": name} for number, name in CATEGORIES.items()]
    file = folder / "instances.json"
    file.write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}), encoding="utf-8")
    return read_coco_split("train", file, folder)[0]


def split_of(folder: Path, *scenes: tuple[tuple[int, int], list[Box]]) -> CocoSplit:
    """Images of rectangles, one object each, of rising categories, in lossless files."""
    entries = []
    for number, (size, boxes) in enumerate(scenes):
        scene(size, *boxes).save(folder / f"{number}.png")
        kinds = [*CATEGORIES] * len(boxes)
        entries.append((f"{number}.png", size, [an_object(box, category=kind) for box, kind in zip(boxes, kinds)]))
    return described_split(folder, entries)


def extent(mask: np.ndarray) -> list[int]:
    """x1, y1, x2, y2 of the pixels that are set."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def data_of(split: CocoSplit, categories: dict[int, str] = CATEGORIES, **given: Any) -> CocoData:
    """The dataset whose splits are both this one."""
    named: dict[str, Any] = {"classes": tuple(categories.values()), "category_ids": tuple(categories)}
    about: dict[str, Any] = {"name": "scenes", "version": None, "root": split.folder, "digest": ""}
    return CocoData(train=split, val=split, counts={}, dropped={}, **named, **about, **given)


def a_learner(
    detector: str = "mask_rcnn_light", *, name="tiny", norm_eval=True, pyramid="simple", relative=False, **backbone: Any
) -> DetectionLearner:
    """A small detector around a small ViT, with random weights that are always the same."""
    torch.manual_seed(0)
    inside = create(name, **{"weights": "random", **backbone})
    taps = quarters(inside) if pyramid == "taps" else (-1,)
    maps = make_maps(inside, VitMapOptions(out_indices=taps, relative=relative, grid=(4, 6)))
    built = build_detector(resolve_detector(detector), maps, pyramid, len(CATEGORIES))  # type: ignore[arg-type]
    return DetectionLearner(built, norm_eval=norm_eval)
