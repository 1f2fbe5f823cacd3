"""A file of annotations in COCO's format, checked -> the columns of a split, kept in an index for the next process.

Errors name the file, the entry and how to fix it.

Shapes: I images, M objects, of which some are crowds.
"""

import hashlib
import json
import marshal
import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.cache import Index, are_settled, file_stamp, keep_index, load_index, stamp_of
from transfer.core.errors import UserError, shortened, unusable
from transfer.core.files import listed_path, with_home
from transfer.core.grouped import repeated
from transfer.data.coco.split import OBJECT_COLUMNS, CocoImage, CocoSplit, Segmentations, encoded_mask, mask_library
from transfer.data.splits.manifest import PackedNames

POLYGON_POINTS = 3
SLACK = 0.005
"""Tolerance in pixels of boxes beyond the image, as COCO writes two decimals."""
FAULTS = ("crowds", "ignored", "no_area", "outside", "below_pixel", "clipped")
"""Why objects are not trained on, the first that holds; boxes `clipped` for training are another matter."""
COCO_VERSION = f"coco 6, marshal {marshal.version}"
INDEXED = 8 * 2**20
"""Bytes from which on a file is given an index; smaller ones are parsed within a quarter of a second."""

Classes = dict[int, str]
"""Category ids and names, in the order of the ids."""


def read_coco_split(
    name: str, file: Path, folder: Path, content: bytes | None = None, boxes: str | None = None
) -> tuple[CocoSplit, Classes, dict[str, int]]:
    """Read a split and its categories, and count the objects and polygons left out of training by reason.

    Args:
        name: the name of the split.
        file: the file of the annotations.
        folder: the folder of the images.
        content: the annotations if the file only stands for them in messages.
        boxes: `from_polygons` computes boxes where there are polygons, `in_file` takes them unchecked.

    Raises:
        UserError: the file is not in COCO's format, or contradicts itself.
    """
    index = _read_index(file) if content is None else _parse(file, content)
    arrays, facts = index.arrays, index.facts
    names = PackedNames(arrays["image_names"], arrays["image_ends"])
    if names and not (folder / names[0]).exists() and (folder.parent / names[0]).exists():
        folder = folder.parent  # names with the folder in front
    full_names = (with_home(name) if name[0] in "~$" else name for name in names)
    real_folder = os.path.realpath(folder)
    paths = (listed_path(folder, os.path.relpath(name, real_folder) if name[0] == "/" else name) for name in full_names)
    columns: dict[str, Any] = {column: arrays[column] for column in OBJECT_COLUMNS if column != "trained"}
    split = CocoSplit(
        name=name,
        folder=folder,
        file=file,
        content=facts["content"],
        images=list(map(CocoImage, arrays["image_ids"].tolist(), paths, *arrays["image_sizes"].T.tolist())),
        segmentations=Segmentations(*(arrays[column] for column in ("block", "ends", "rows"))),
        trained=~arrays["crowd"],
        **columns,
    )
    if boxes == "from_polygons":
        split = replace(split, boxes=np.where(np.isnan(arrays["extents"]), split.boxes, arrays["extents"]))
    split = split if boxes == "in_file" else replace(split, notes=_check_boxes(split, arrays["extents"]))
    trained, faults = fit_boxes(split)
    return replace(split, trained=trained), dict(map(tuple, facts["classes"])), faults | facts["counts"]


def _read_index(file: Path) -> Index:
    """Return the columns of a file, from its index where there is one."""
    large, stamp, settled = file.stat().st_size >= INDEXED, file_stamp(file), are_settled(np.array(stamp_of(file)))
    if large and (stored := load_index(file, COCO_VERSION, stamp)):
        return stored
    index = _parse(file, file.read_bytes())
    if large and settled:
        keep_index(file, COCO_VERSION, stamp, index)
    return index


def _parse(file: Path, content: bytes) -> Index:
    """Return the columns with the objects by image, their references resolved and their encodings checked.

    Arrays: the `OBJECT_COLUMNS` of `CocoSplit` without `trained`, its segmentations, the `extents` of polygons, and of
    the images the ids [I], sorted, the packed names, and width and height [I, 2]. Facts: `content`, `classes`, and
    `counts` of short polygons and computed areas.
    """
    tables = _read_tables(file, content)
    image_entries = sorted(tables["images"], key=lambda entry: entry["id"])
    classes = {entry["id"]: entry["name"] for entry in sorted(tables["categories"], key=lambda entry: entry["id"])}
    image_ids, objects = [entry["id"] for entry in image_entries], tables["annotations"]
    columns: dict[str, Any] = {}
    for name in ENTRY_FIELDS["annotations"]:
        columns[name] = [entry.get(name, OPTIONAL.get(name)) for entry in objects]
    image = _places(file, columns["image_id"], image_ids, "image_id", "images")
    label = _places(file, columns["category_id"], list(classes), "category_id", "categories")
    counts = _remove_short(columns["segmentation"])
    segmentations = Segmentations.collect(columns["segmentation"])
    ids = np.array(columns["id"], dtype=np.int64)
    boxes = np.array(columns["bbox"], dtype=np.float64).reshape(-1, 4)
    areas = np.array(columns["area"], dtype=np.float64)
    sizes = np.array([(entry["width"], entry["height"]) for entry in image_entries], dtype=np.int64).reshape(-1, 2)
    _check_encodings(file, ids, columns["segmentation"], sizes[image])
    computed_rows = np.flatnonzero(np.isnan(areas)).tolist()
    for row in computed_rows:
        width, height = sizes[image[row]].tolist()
        mask = segmentations[row]
        areas[row] = mask_library().area(encoded_mask(mask, height, width)) if mask else boxes[row, 2:].prod()
    order = np.argsort(image, kind="stable")
    crowd, ignored = (np.array(columns[name], dtype=bool) for name in ("iscrowd", "ignore"))
    object_columns = {"ids": ids, "image": image, "label": label, "boxes": boxes, "areas": areas, "crowd": crowd}
    object_columns |= {"ignored": ignored, "extents": _extents(columns["segmentation"], crowd)}
    names = PackedNames.of(entry["file_name"].replace("\\", "/") for entry in image_entries)
    arrays = {name: column[order] for name, column in object_columns.items()} | vars(segmentations.select(order))
    arrays |= {"image_names": names.block, "image_ends": names.ends}
    arrays |= {"image_ids": np.array(image_ids, dtype=np.int64), "image_sizes": sizes}
    counts["computed_area"] = len(computed_rows)
    facts = {"content": hashlib.sha256(content).hexdigest(), "classes": list(classes.items()), "counts": counts}
    return Index(arrays, facts)


def _read_tables(file: Path, content: bytes) -> dict[str, list[dict[str, Any]]]:
    """Return the checked lists of `ENTRY_FIELDS`. Raises UserError unless it is JSON in COCO's format."""
    with unusable(f"{file}: not JSON", ValueError, RecursionError, fix=HINT):
        tables = json.loads(content)
    tables = tables if isinstance(tables, dict) else {}
    if missing := sorted(key for key in ENTRY_FIELDS if not isinstance(tables.get(key), list)):
        raise UserError(
            f"{file}: not in COCO's format: the list `{'`, `'.join(missing)}` is missing (files without annotations, "
            f"image_info_*.json, cannot be used for training or evaluation); {HINT}"
        )
    for image in tables["images"]:
        if isinstance(image, dict) and image.get("file_name") is None and isinstance(image.get("coco_url"), str):
            image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])  # as LVIS documents
    for key in ENTRY_FIELDS:
        _check_entries(file, key, tables[key])
    for key, name in (("images", "id"), ("images", "file_name"), ("categories", "id"), ("annotations", "id")):
        if twice := repeated(entry[name] for entry in tables[key]):
            raise UserError(f"{file}: `{key}` has {len(twice)} duplicate values of `{name}`: {shortened(twice)}")
    return tables


HINT = "extract the archive again, or fix the program that wrote the file"
Field = tuple[Callable[[Any], bool], str]
"""What fits, and in words."""


def is_whole(value: Any) -> bool:
    return type(value) is int


def is_finite_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # JSON as Python writes it has NaN


def is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(is_finite_number, value))


RLE = re.compile("[0-o]*[0-O]")
"""A compressed run-length encoding: 6 bits a character, of which the first says that the number continues."""


def is_segmentation(value: Any) -> bool:
    """Return whether a value is polygons of any length, a run-length encoding, None or []."""
    if isinstance(value, dict):
        counts, size = value.get("counts"), value.get("size")
        fits = RLE.fullmatch(counts) is not None if isinstance(counts, str) else _are_lengths(counts)
        return fits and _are_lengths(size)
    if isinstance(value, list) and len(value) > 2 and all(isinstance(part, list) and len(part) == 2 for part in value):
        return False  # one polygon as a list of its points
    return value is None or (isinstance(value, list) and all(map(_is_polygon, value)))


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and {*map(type, value)} <= {int} and min(value, default=0) >= 0


def _is_polygon(value: Any) -> bool:
    fits = isinstance(value, list) and (len(value) < 6 or len(value) % 2 == 0)
    return fits and {*map(type, value)} <= {int, float} and math.isfinite(sum(value))


_TEXT: Field = (lambda value: isinstance(value, str) and bool(value), "text")
_WHOLE: Field = (is_whole, "a whole number")
_SIZE: Field = (lambda value: is_whole(value) and value > 0, "a whole number above 0")
_FLAG: Field = (lambda value: type(value) in (int, bool) and value in (0, 1), "0 or 1")
ENTRY_FIELDS: dict[str, dict[str, Field]] = {
    "images": {"id": _WHOLE, "file_name": _TEXT, "width": _SIZE, "height": _SIZE},
    "categories": {"id": _WHOLE, "name": _TEXT},
    "annotations": {
        **dict.fromkeys(("id", "image_id", "category_id"), _WHOLE),
        "bbox": (is_box, "a list of four numbers: x, y, width, height"),
        "area": (lambda value: is_finite_number(value) or value != value, "a number"),
        "iscrowd": _FLAG,
        "ignore": _FLAG,
        "segmentation": (is_segmentation, "a list of polygons [x, y, x, y, ...] or a run-length encoding"),
    },
}
OPTIONAL = {"iscrowd": 0, "ignore": 0, "segmentation": None, "area": math.nan}
"""Fields that datasets other than COCO leave out, or set to null, with their defaults."""
TEXT_FIELDS = ("file_name", "name", "segmentation")


def as_number(value: Any) -> Any:
    """Return the number that a text says, 96 for 96.0, and those in a list; anything else as it is."""
    if isinstance(value, list):
        return list(map(as_number, value))
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value) if value.isdecimal() else float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_entries(file: Path, key: str, entries: list[Any]) -> None:
    """Check the entries of the list `key`; numbers written as text, and whole numbers with a point, are converted.

    Args:
        file: its name, for messages.
        key: the list.
        entries: its entries.

    Raises:
        UserError: one is not in COCO's format.
    """
    for number, entry in enumerate(entries):
        fields = entry if isinstance(entry, dict) else {}
        for name, (fits, requirement) in ENTRY_FIELDS[key].items():
            value = OPTIONAL.get(name) if fields.get(name) is None else fields[name]
            if value is not None:
                unfit_polygons = name == "segmentation" and isinstance(value, list) and not fits(value)
                value = fields[name] = as_number(value) if unfit_polygons or name not in TEXT_FIELDS else value
            if not fits(value):
                fault = f"is {fields[name]!r:.80}" if name in fields else "is missing"
                where = f"entry {number} of `{key}` (id {fields.get('id')!r:.20})"
                raise UserError(f"{file}: {where}: `{name}` {fault}; it must be {requirement}; {HINT}")


def _remove_short(segmentations: list[Any]) -> dict[str, int]:
    """Remove polygons with fewer than three points in place; count them, and the objects left without, whose
    segmentation becomes None."""
    counts = {"short_polygons": 0, "left_without_polygon": 0}
    for row, segmentation in enumerate(segmentations):
        if isinstance(segmentation, list):
            polygons = [polygon for polygon in segmentation if len(polygon) >= 2 * POLYGON_POINTS]
            counts["short_polygons"] += len(segmentation) - len(polygons)
            counts["left_without_polygon"] += bool(segmentation) and not polygons
            segmentations[row] = polygons or None
    return counts


def _places(file: Path, references: Sequence[int], table_ids: list[int], name: str, table: str) -> NDArray[Any]:
    """Return the place [M] of each referenced id among the sorted `table_ids`, int64."""
    referenced, ids = np.array(references, dtype=np.int64), np.array(table_ids, dtype=np.int64)
    unknown = ~np.isin(referenced, ids)
    if unknown.any():
        unknown_ids = shortened(np.unique(referenced[unknown]).tolist())
        fault = f"{int(unknown.sum())} annotations have an `{name}` that `{table}` does not list: {unknown_ids}"
        raise UserError(f"{file}: {fault}; remove these annotations or complete `{table}`")
    return np.searchsorted(ids, referenced)


def _check_encodings(file: Path, ids: NDArray[Any], segmentations: list[Any], sizes: NDArray[Any]) -> None:
    """Raise UserError for a run-length encoding that does not fit its image, of size (width, height) [M, 2]."""
    rows = [row for row, segmentation in enumerate(segmentations) if isinstance(segmentation, dict)]
    for row, (width, height) in zip(rows, sizes[rows].tolist()):
        size, counts = segmentations[row]["size"], segmentations[row]["counts"]
        subject, fix = f"{file}: the run-length encoding of annotation {ids[row]}", "encode the mask again"
        if isinstance(counts, str):
            with unusable(f"{subject} is of `size` {size!r:.80}", ValueError, TypeError, fix=fix):
                counts = mask_library("mask_api_new_cpp").toUncompressedRLE([segmentations[row]])[0]["counts"]
        if size != [height, width] or sum(counts) != height * width:
            statement = f"{sum(counts)} pixels and of `size` {size!r:.80}, but the image's is {[height, width]}"
            raise UserError(f"{subject} is of {statement}; {fix}")


def _extents(segmentations: list[Any], crowd: NDArray[Any]) -> NDArray[Any]:
    """Return the boxes (x, y, width, height) of masks, float64 [M, 4]; nan for objects without, and encoded crowds."""
    rows = [row for row, segmentation in enumerate(segmentations) if isinstance(segmentation, list)]
    numbers = chain.from_iterable(chain.from_iterable(segmentations[row] for row in rows))
    points, boxes = np.fromiter(numbers, np.float64).reshape(-1, 2), np.full((len(segmentations), 4), np.nan)
    sizes = np.array([sum(map(len, segmentations[row])) // 2 for row in rows], dtype=np.int64)
    boxes[rows, :2] = low = np.minimum.reduceat(points, np.cumsum(sizes) - sizes)
    boxes[rows, 2:] = np.maximum.reduceat(points, np.cumsum(sizes) - sizes) - low
    objects = np.flatnonzero(~crowd).tolist()
    if encodings := {row: segmentations[row] for row in objects if isinstance(segmentations[row], dict)}:
        masks = [encoded_mask(mask, *mask["size"]) for mask in encodings.values()]
        boxes[[*encodings]] = mask_library().toBbox(masks)
    return boxes


def _check_boxes(split: CocoSplit, extents: NDArray[Any]) -> list[str]:
    """Return a note of boxes that disagree with their masks by half of a side, if any.

    Raises:
        UserError: a side is negative; or many boxes are corners, as polygons or else the sizes of images show, or
            disagree with their masks.
    """
    rows = np.flatnonzero(~((np.abs(split.boxes - extents) < 1) & (split.boxes >= 0)).all(axis=1))  # few of COCO's
    extents, ids, image_sizes = extents[rows], split.ids[rows], split.sizes()[split.image[rows]]
    start, sides, mask_start, mask_sides = *np.hsplit(split.boxes[rows], 2), *np.hsplit(extents, 2)
    overlap = np.minimum(start + sides, mask_start + mask_sides) - np.maximum(start, mask_start)
    span = np.maximum(start + sides, mask_start + mask_sides) - np.minimum(start, mask_start)
    gap, gap_as_corners = (np.abs(np.hstack([start, side]) - extents).max(axis=1) for side in (sides, sides - start))
    plausible_corners = (sides > start) & (start > -image_sizes / 20 - 1) & (sides < image_sizes * 1.05 + 1)
    beyond_image = plausible_corners.all(axis=1) & np.isnan(gap) & (start + sides > image_sizes + 1).any(axis=1)
    corners, tolerated = 5 * gap_as_corners + 2 < gap, max(2, len(split.ids) / 4)
    unlike_masks = ((overlap + 1) / (span + 1) < 0.5).any(axis=1) | corners
    fix_corners = "COCO's are x, y, width, height: write width x2 - x1 and height y2 - y1"
    fix_by_key = "the YAML key `boxes: from_polygons` computes them from masks, `boxes: in_file` takes them as they are"
    for faulty, limit, fault, fix in (
        (beyond_image | corners, tolerated, "are corners (x1, y1, x2, y2), as images or polygons show", fix_corners),
        ((sides < 0).any(axis=1), 0, "have a negative width or height", "write x, y, width, height"),
        (unlike_masks, tolerated, "disagree with their masks", fix_by_key),
    ):
        listed = shortened(ids[faulty].tolist(), 3)
        note = f"{np.sum(faulty)} of {len(split.ids)} boxes {fault} (annotations {listed}): {fix}"
        if np.sum(faulty) > limit:
            raise UserError(f"{split.file}: {note}")
    return [note] if np.any(faulty) else []


def fit_boxes(split: CocoSplit) -> tuple[NDArray[Any], dict[str, int]]:
    """Return which objects are trained on, bool [M], by the rules of mmdetection's `CocoDataset`, and their faults."""
    start, sides, image_sizes = split.boxes[:, :2], split.boxes[:, 2:], split.sizes()[split.image]
    without_area = (sides <= 0).any(axis=1) | (split.areas <= 0)
    outside = ((start + sides <= 0) | (start >= image_sizes)).any(axis=1)
    faults = np.array([split.crowd, split.ignored, without_area, outside, (sides < 1).any(axis=1)])
    trained: NDArray[Any] = np.logical_not(faults.any(axis=0))
    counts = np.bincount(faults.argmax(axis=0)[~trained], minlength=len(faults)).tolist()
    clipped = ((start < -SLACK) | (start + sides > image_sizes + SLACK)).any(axis=1) & trained
    return trained, dict(zip(FAULTS, (*counts, int(clipped.sum())), strict=True))
