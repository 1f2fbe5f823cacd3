"""One split of a data set in COCO's format. Letters: I images, M objects, of which some are crowds."""

import contextlib
import gc
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.errors import UserError, shortened
from tasks.data.coco_checks import parse_coco, rle_fault
from tasks.data.packed import Packed

WORDS = {"train": "training", "val": "validation"}
POINTS = 3
SLACK = 0.005
"""Tolerance in pixels of boxes beyond the image, as COCO writes two decimals."""


@dataclass(frozen=True, slots=True)
class CocoImage:
    """An image as described by its entry; sizes in pixels."""

    id: int
    file_name: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CocoSplit:
    """Images in the order of their ids, and all objects, by image, else in the order of the file."""

    name: str
    folder: Path
    """Folder of the images."""
    file: Path
    """File of the annotations."""
    content: str
    """Checksum (sha256, hex) of `file`."""
    images: Sequence[CocoImage]
    ids: NDArray[Any]
    """Ids [M] of the objects, int64."""
    image: NDArray[Any]
    """Index [M] of each object's image in `images`, int64."""
    label: NDArray[Any]
    """Index [M] of each object's class, int64."""
    boxes: NDArray[Any]
    """Boxes [M, 4] (x, y, width, height) in pixels as in the file, float64."""
    areas: NDArray[Any]
    """Areas [M] in square pixels as in the file, float64."""
    crowd: NDArray[Any]
    """Whether each object [M] is a crowd: neither right nor wrong in scores, background in training."""
    segmentations: Packed
    """Segmentations [M]: lists of polygons [x, y, x, y, ...], or {"size", "counts"}; None for objects without."""
    masked: NDArray[Any]
    """Whether each object [M] has a segmentation."""
    trained: NDArray[Any]
    """Whether each object [M] is trained on: no crowd, sides of a pixel at least, and area inside the image."""

    def path(self, index: int) -> str:
        """Return the file of an image."""
        return f"{self.folder}/{self.images[index].file_name}"

    def paths(self) -> list[str]:
        """Return the files [I] of all images."""
        return [self.path(index) for index in range(len(self.images))]

    def rows(self, index: int) -> slice:
        """Return the rows of an image's objects."""
        first, last = np.searchsorted(self.image, [index, index + 1])
        return slice(int(first), int(last))

    def sizes(self) -> NDArray[Any]:
        """Return width and height [I, 2] of the images in pixels, float64."""
        return np.array([(image.width, image.height) for image in self.images], dtype=np.float64).reshape(-1, 2)

    @cached_property
    def clipped_boxes(self) -> NDArray[Any]:
        """Return `boxes` clipped to the images, float64 [M, 4]; meaningful where `trained`."""
        limits = self.sizes()[self.image]
        low = np.clip(self.boxes[:, :2], 0, limits)
        high = np.clip(self.boxes[:, :2] + self.boxes[:, 2:], 0, limits)
        return np.concatenate([low, high - low], axis=1)

    def with_objects(self) -> NDArray[Any]:
        """Return bool [I]: whether each image has an object to train on."""
        return np.bincount(self.image[self.trained], minlength=len(self.images)) > 0

    def select(self, keep: NDArray[Any]) -> "CocoSplit":
        """Return the split with only the images where `keep`, bool [I], is true, and their objects."""
        rows = np.flatnonzero(keep[self.image])
        names = ("ids", "label", "boxes", "areas", "crowd", "masked", "trained")
        columns = {name: getattr(self, name)[rows] for name in names}
        return replace(
            self,
            images=[image for image, kept in zip(self.images, keep) if kept],
            image=(np.cumsum(keep) - 1)[self.image[rows]],
            segmentations=self.segmentations.select(rows),
            **columns,
        )


Classes = dict[int, str]
"""Category ids and names, in the order of the ids."""


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: its passes over COCO's millions of lists take a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_collector_paused()
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
    try:
        content = file.read_bytes() if content is None else content
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; fix the file or its permissions") from None
    tables = parse_coco(file, content)
    images = [CocoImage(image["id"], image["file_name"], image["width"], image["height"]) for image in tables["images"]]
    images.sort(key=lambda image: image.id)
    categories = sorted(tables["categories"], key=lambda category: category["id"])
    classes = {category["id"]: category["name"] for category in categories}
    objects = tables["annotations"]
    image_ids = [entry.id for entry in images]
    image = _places(file, [entry["image_id"] for entry in objects], image_ids, "image_id", "images")
    label = _places(file, [entry["category_id"] for entry in objects], list(classes), "category_id", "categories")
    order = np.argsort(image, kind="stable")
    objects = [objects[place] for place in order]
    crowd = np.array([bool(entry.get("iscrowd", 0)) for entry in objects], dtype=bool)
    _check_rles(file, objects, [images[place] for place in image[order]])
    segmentations, polygons = _without_short([entry.get("segmentation") for entry in objects])
    split = CocoSplit(
        name=name,
        folder=folder,
        file=file,
        content=hashlib.sha256(content).hexdigest(),
        images=images,
        ids=np.array([entry["id"] for entry in objects], dtype=np.int64),
        image=image[order],
        label=label[order],
        boxes=np.array([entry["bbox"] for entry in objects], dtype=np.float64).reshape(-1, 4),
        areas=np.array([entry["area"] for entry in objects], dtype=np.float64),
        crowd=crowd,
        segmentations=Packed(segmentations),
        masked=np.array([segmentation is not None for segmentation in segmentations], dtype=bool),
        trained=~crowd,
    )
    trained, boxes = _fit_boxes(split)
    return replace(split, trained=trained), classes, {"crowds": int(crowd.sum()), **boxes, **polygons}


def _places(file: Path, references: list[int], known: list[int], name: str, table: str) -> NDArray[Any]:
    """Return the place [M] of each referenced id among the sorted `known`, int64."""
    values, ids = np.array(references, dtype=np.int64), np.array(known, dtype=np.int64)
    unknown = ~np.isin(values, ids)
    if unknown.any():
        raise UserError(
            f"{file}: {int(unknown.sum())} annotations have an `{name}` that `{table}` does not list: "
            f"{shortened(np.unique(values[unknown]).tolist())}; take the annotations out, or list these in `{table}`"
        )
    return np.searchsorted(ids, values)


def _check_rles(file: Path, objects: list[dict[str, Any]], images: list[CocoImage]) -> None:
    for entry, image in zip(objects, images):
        rle = entry.get("segmentation")
        if isinstance(rle, dict) and (fault := rle_fault(rle, image.height, image.width)):
            raise UserError(
                f"{file}: the run-length encoding of annotation {entry['id']}: {fault}; encode the mask anew"
            )


def _without_short(segmentations: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """Remove polygons with fewer than three points, and count them; an object without others is left with its box."""
    kept: list[Any] = []
    short = bare = 0
    for segmentation in segmentations:
        if not isinstance(segmentation, list):
            kept.append(segmentation)
            continue
        polygons = [polygon for polygon in segmentation if len(polygon) >= 2 * POINTS]
        short += len(segmentation) - len(polygons)
        bare += bool(segmentation) and not polygons
        kept.append(polygons or None)
    return kept, {"short_polygons": short, "left_without_polygon": bare}


def _fit_boxes(split: CocoSplit) -> tuple[NDArray[Any], dict[str, int]]:
    """Return which objects are trained on, bool [M], by the rules of mmdetection's `CocoDataset`, and their faults."""
    low, high, limits = split.boxes[:, :2], split.boxes[:, :2] + split.boxes[:, 2:], split.sizes()[split.image]
    flat = ((split.boxes[:, 2:] <= 0).any(axis=1) | (split.areas <= 0)) & ~split.crowd
    outside = ((high <= 0) | (low >= limits)).any(axis=1) & ~flat & ~split.crowd
    tiny = (split.boxes[:, 2:] < 1).any(axis=1) & ~(flat | outside | split.crowd)
    trained = ~(flat | outside | tiny | split.crowd)
    clipped = ((low < -SLACK) | (high > limits + SLACK)).any(axis=1) & trained
    counts = {"no_area": flat, "outside": outside, "below_pixel": tiny, "clipped": clipped}
    return trained, {name: int(rows.sum()) for name, rows in counts.items()}
