"""A file of annotations in COCO's format -> the columns of a split, kept in an index for the next process.

Shapes: I images, M objects, of which some are crowds.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.cache import Index, file_stamp, is_settled, keep_index, load_index
from transfer.core.errors import UserError, shortened
from transfer.core.files import listed_path, with_home
from transfer.data.coco.checks import FIELDS, HINT, OPTIONAL, check_entries, check_unique, rle_fault
from transfer.data.coco.split import CocoImage, CocoSplit, Segmentations, encoded_mask, mask_library
from transfer.data.splits.manifest import PackedNames

POINTS = 3
SLACK = 0.005
"""Tolerance in pixels of boxes beyond the image, as COCO writes two decimals."""
FAULTS = ("crowds", "ignored", "no_area", "outside", "below_pixel", "clipped")
"""Why objects are not trained on, the first that holds; boxes `clipped` for training are another matter."""
VERSION = "coco 3"
INDEXED = 8 * 2**20
"""Bytes from which on a file is given an index; smaller ones are parsed within a quarter of a second."""

Classes = dict[int, str]
"""Category ids and names, in the order of the ids."""


def read_split(
    name: str, file: Path, folder: Path, content: bytes | None = None
) -> tuple[CocoSplit, Classes, dict[str, int]]:
    """Read a split and its categories, and count the objects and polygons left out of training by reason.

    Args:
        name: the name of the split.
        file: the file of the annotations.
        folder: the folder of the images.
        content: the annotations if the file only stands for them in messages.

    Raises:
        UserError: the file is not in COCO's format, or contradicts itself.
    """
    index = _read_index(file) if content is None else _parse(file, content)
    arrays, facts = index.arrays, index.facts
    names = PackedNames.from_arrays(arrays["image_names"], arrays["image_ends"])
    if names and not (folder / names[0]).exists() and (folder.parent / names[0]).exists():
        folder = folder.parent  # names with the folder in front
    full, real = (with_home(image) if image[0] in "~$" else image for image in names), os.path.realpath(folder)
    paths = (listed_path(folder, os.path.relpath(name, real) if name[0] == "/" else name) for name in full)
    segmentations = Segmentations.from_arrays(arrays)
    columns: dict[str, Any] = {column: arrays[column] for column in _COLUMNS}
    split = CocoSplit(
        name=name,
        folder=folder,
        file=file,
        content=facts["content"],
        images=list(map(CocoImage, arrays["image_ids"].tolist(), paths, *arrays["image_sizes"].T.tolist())),
        segmentations=segmentations,
        masked=segmentations.present,
        trained=~arrays["crowd"],
        **columns,
    )
    trained, boxes = _fit_boxes(split)
    return replace(split, trained=trained), dict(map(tuple, facts["classes"])), boxes | facts["counts"]


_COLUMNS = ("ids", "image", "label", "boxes", "areas", "crowd", "ignored")


def _read_index(file: Path) -> Index:
    """Return the columns of a file, from its index where there is one; see `_assemble`."""
    large, stamp, settled = file.stat().st_size >= INDEXED, file_stamp(file), is_settled(file)
    if large and (kept := load_index(file, VERSION, stamp)):
        return kept
    index = _parse(file, file.read_bytes())
    if large and settled:
        keep_index(file, VERSION, stamp, index)
    return index


def _parse(file: Path, content: bytes) -> Index:
    """Return the columns with the objects by image, their references resolved and their encodings checked.

    Arrays: the `_COLUMNS` of `CocoSplit`, its segmentations, and of the images the ids [I], sorted, the packed names,
    and width and height [I, 2]. Facts: `content`, `classes`, and `counts` of short polygons and computed areas.
    """
    tables = _read_tables(file, content)
    entries = sorted(tables["images"], key=lambda entry: entry["id"])
    images = [CocoImage(*(entry[name] for name in FIELDS["images"])) for entry in entries]
    classes = {entry["id"]: entry["name"] for entry in sorted(tables["categories"], key=lambda entry: entry["id"])}
    image_ids, objects = [image.id for image in images], tables["annotations"]
    columns: dict[str, Any] = {
        name: [entry.get(name, OPTIONAL.get(name)) for entry in objects] for name in FIELDS["annotations"]
    }
    image = _places(file, columns["image_id"], image_ids, "image_id", "images")
    label = _places(file, columns["category_id"], list(classes), "category_id", "categories")
    short, bare = _remove_short(columns["segmentation"])
    segmentations = Segmentations.collect(columns["segmentation"])
    ids = np.array(columns["id"], dtype=np.int64)
    for row in np.flatnonzero(segmentations.encoding >= 0):
        described = images[image[row]]
        if fault := rle_fault(segmentations[int(row)], described.height, described.width):
            raise UserError(f"{file}: the run-length encoding of annotation {ids[row]}: {fault}; encode the mask again")
    boxes = np.array(columns["bbox"], dtype=np.float64).reshape(-1, 4)
    areas = np.array(columns["area"], dtype=np.float64)
    sizes = np.array([(image.width, image.height) for image in images], dtype=np.int64).reshape(-1, 2)
    _check_boxes(file, boxes, areas, sizes[image])
    computed = np.flatnonzero(np.isnan(areas)).tolist()
    for row in computed:
        width, height = sizes[image[row]].tolist()
        mask = segmentations[row]
        areas[row] = mask_library().area(encoded_mask(mask, height, width)) if mask else boxes[row, 2:].prod()
    order = np.argsort(image, kind="stable")
    rows = {"ids": ids, "image": image, "label": label, "boxes": boxes, "areas": areas}
    rows |= {"crowd": np.array(columns["iscrowd"], dtype=bool), "ignored": np.array(columns["ignore"], dtype=bool)}
    names, ends = PackedNames(image.file_name.replace("\\", "/") for image in images).arrays()
    arrays = {name: column[order] for name, column in rows.items()} | segmentations.select(order).arrays()
    arrays |= {"image_ids": np.array(image_ids, dtype=np.int64), "image_names": names, "image_ends": ends}
    counts = {"short_polygons": short, "left_without_polygon": bare, "computed_area": len(computed)}
    facts = {"content": hashlib.sha256(content).hexdigest(), "classes": list(classes.items()), "counts": counts}
    return Index(arrays | {"image_sizes": sizes}, facts)


def _read_tables(file: Path, content: bytes) -> dict[str, list[dict[str, Any]]]:
    """Return the checked lists of `FIELDS`. Raises UserError where the text is not JSON or not in COCO's format."""
    try:
        tables = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}); {HINT}") from None
    tables = tables if isinstance(tables, dict) else {}
    if missing := sorted(key for key in FIELDS if not isinstance(tables.get(key), list)):
        raise UserError(
            f"{file}: not in COCO's format: the list `{'`, `'.join(missing)}` is missing (files without annotations, "
            f"image_info_*.json, cannot be used for training or evaluation); {HINT}"
        )
    for key in FIELDS:
        check_entries(file, key, tables[key])
    for key, name in (("images", "id"), ("images", "file_name"), ("categories", "id"), ("annotations", "id")):
        check_unique(file, key, [entry[name] for entry in tables[key]], name)
    return tables


def _remove_short(segmentations: list[Any]) -> tuple[int, int]:
    """Remove polygons with fewer than three points in place; return their number, and that of objects left without."""
    short = bare = 0
    for row, segmentation in enumerate(segmentations):
        if isinstance(segmentation, list):
            polygons = [polygon for polygon in segmentation if len(polygon) >= 2 * POINTS]
            short += len(segmentation) - len(polygons)
            bare += bool(segmentation) and not polygons
            segmentations[row] = polygons
    return short, bare


def _places(file: Path, references: Sequence[int], known: list[int], name: str, table: str) -> NDArray[Any]:
    """Return the place [M] of each referenced id among the sorted `known`, int64."""
    values, ids = np.array(references, dtype=np.int64), np.array(known, dtype=np.int64)
    unknown = ~np.isin(values, ids)
    if unknown.any():
        raise UserError(
            f"{file}: {int(unknown.sum())} annotations have an `{name}` that `{table}` does not list: "
            f"{shortened(np.unique(values[unknown]).tolist())}; remove these annotations or complete `{table}`"
        )
    return np.searchsorted(ids, values)


def _check_boxes(file: Path, boxes: NDArray[Any], areas: NDArray[Any], limits: NDArray[Any]) -> None:
    """Raise UserError if most boxes [M, 4] are corners.

    Evidence are areas [M] that only the corners span, or many boxes that fit their images, of sizes [M, 2], only as
    corners.
    """
    start, sides = boxes[:, :2], boxes[:, 2:]
    across, slack = sides - start, limits / 20 + 1
    told = _spans(across, areas) & ~_spans(sides, areas) & (across > 0).all(axis=1)
    fit = ((across > 0) & (start > -slack) & (sides < limits + slack)).all(axis=1)
    beyond = fit & (start + sides > limits + 1).any(axis=1)
    if told.sum() > len(boxes) / 2 or beyond.sum() > max(2, len(boxes) / 4):
        raise UserError(
            f"{file}: {max(told.sum(), fit.sum())} of {len(boxes)} boxes are corners (x1, y1, x2, y2), as their `area` "
            "or the sizes of images show; COCO's are x, y, width, height: write width x2 - x1 and height y2 - y1"
        )


def _spans(sides: NDArray[Any], areas: NDArray[Any]) -> NDArray[Any]:
    """Return whether each area is that of these sides, bool [M]; some count the pixel at the end."""
    return np.any([np.isclose(areas, (sides + end).prod(axis=1), rtol=0.01) for end in (0, 1)], axis=0)


def _fit_boxes(split: CocoSplit) -> tuple[NDArray[Any], dict[str, int]]:
    """Return which objects are trained on, bool [M], by the rules of mmdetection's `CocoDataset`, and their faults."""
    low, sides, limits = split.boxes[:, :2], split.boxes[:, 2:], split.sizes()[split.image]
    flat = (sides <= 0).any(axis=1) | (split.areas <= 0)
    outside = ((low + sides <= 0) | (low >= limits)).any(axis=1)
    faults = np.array([split.crowd, split.ignored, flat, outside, (sides < 1).any(axis=1)])
    trained: NDArray[Any] = np.logical_not(faults.any(axis=0))
    counts = np.bincount(faults.argmax(axis=0)[~trained], minlength=len(faults)).tolist()
    clipped = ((low < -SLACK) | (low + sides > limits + SLACK)).any(axis=1) & trained
    return trained, dict(zip(FAULTS, (*counts, int(clipped.sum())), strict=True))
