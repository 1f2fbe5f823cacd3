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
from tasks.data.coco_checks import parsed, rle_fault
from tasks.data.packed import Packed

WORDS = {"train": "training", "val": "validation"}
POINTS = 3
SLACK = 0.005
"""Pixels: COCO writes two decimals, so that less is not counted as outside."""


@dataclass(frozen=True, slots=True)
class CocoImage:
    """An image as its entry describes it; sizes in pixels."""

    id: int
    file_name: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CocoSplit:
    """Images in the order of their ids, and all objects, by image, else in the order of the file."""

    name: str
    folder: Path
    """Of the images."""
    file: Path
    """The annotations."""
    content: str
    """sha256 (hex) of that file"""
    images: Sequence[CocoImage]
    ids: NDArray[Any]
    """int64 [M]"""
    image: NDArray[Any]
    """int64 [M] index into `images`"""
    label: NDArray[Any]
    """int64 [M] 0..C-1, index into the classes"""
    boxes: NDArray[Any]
    """float64 [M, 4]: x, y, width, height in pixels, as in the file"""
    areas: NDArray[Any]
    """float64 [M] square pixels, as in the file"""
    crowd: NDArray[Any]
    """bool [M] a region of many; neither right nor wrong in scores, background in training"""
    segmentations: Packed
    """[M] lists of polygons [x, y, x, y, ...], or {"size", "counts"}; None of an object without"""
    masked: NDArray[Any]
    """bool [M] there is a segmentation"""
    trained: NDArray[Any]
    """bool [M] fit for training: no crowd, and a box of a pixel at least that has area inside the image"""

    def path(self, index: int) -> str:
        """The file of an image."""
        return f"{self.folder}/{self.images[index].file_name}"

    def paths(self) -> list[str]:
        """[I] the files of all images."""
        return [self.path(index) for index in range(len(self.images))]

    def rows(self, index: int) -> slice:
        """Where the objects of an image stand."""
        first, last = np.searchsorted(self.image, [index, index + 1])
        return slice(int(first), int(last))

    def sizes(self) -> NDArray[Any]:
        """float64 [I, 2]: width and height in pixels."""
        return np.array([(image.width, image.height) for image in self.images], dtype=np.float64).reshape(-1, 2)

    def clipped_boxes(self) -> NDArray[Any]:
        """float64 [M, 4]: `boxes` cut off at the borders of the images. Meaningful where `trained`."""
        return self._clipped

    @cached_property
    def _clipped(self) -> NDArray[Any]:
        limits = self.sizes()[self.image]
        low = np.clip(self.boxes[:, :2], 0, limits)
        high = np.clip(self.boxes[:, :2] + self.boxes[:, 2:], 0, limits)
        return np.concatenate([low, high - low], axis=1)

    def with_objects(self) -> NDArray[Any]:
        """bool [I]: which images hold something to train on."""
        return np.bincount(self.image[self.trained], minlength=len(self.images)) > 0

    def select(self, keep: NDArray[Any]) -> "CocoSplit":
        """The split with the images where `keep`, bool [I], is set, and their objects."""
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
    """Python's search for cycles would go through COCO's millions of lists again and again: a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_collector_paused()
def read_split(name: str, file: Path, folder: Path) -> tuple[CocoSplit, Classes, dict[str, int]]:
    """A split, its categories, and how many objects and polygons are left out of training, by reason.

    Raises:
        UserError: the file is not in COCO's format, or contradicts itself.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; fix the file or its permissions") from None
    tables = parsed(file, content)
    images = [CocoImage(one["id"], one["file_name"], one["width"], one["height"]) for one in tables["images"]]
    images.sort(key=lambda image: image.id)
    classes = {one["id"]: one["name"] for one in sorted(tables["categories"], key=lambda one: one["id"])}
    given = tables["annotations"]
    image = _places(file, [one["image_id"] for one in given], [one.id for one in images], "image_id", "images")
    label = _places(file, [one["category_id"] for one in given], list(classes), "category_id", "categories")
    order = np.argsort(image, kind="stable")
    given = [given[place] for place in order]
    crowd = np.array([bool(one.get("iscrowd", 0)) for one in given], dtype=bool)
    _check_rles(file, given, [images[place] for place in image[order]])
    segmentations, polygons = _without_short([one.get("segmentation") for one in given])
    split = CocoSplit(
        name=name,
        folder=folder,
        file=file,
        content=hashlib.sha256(content).hexdigest(),
        images=images,
        ids=np.array([one["id"] for one in given], dtype=np.int64),
        image=image[order],
        label=label[order],
        boxes=np.array([one["bbox"] for one in given], dtype=np.float64).reshape(-1, 4),
        areas=np.array([one["area"] for one in given], dtype=np.float64),
        crowd=crowd,
        segmentations=Packed(segmentations),
        masked=np.array([one is not None for one in segmentations], dtype=bool),
        trained=~crowd,
    )
    trained, boxes = _fit_boxes(split)
    return replace(split, trained=trained), classes, {"crowds": int(crowd.sum()), **boxes, **polygons}


def _places(file: Path, given: list[int], known: list[int], name: str, table: str) -> NDArray[Any]:
    """int64 [M]: where each id stands among `known`, which rise."""
    values, ids = np.array(given, dtype=np.int64), np.array(known, dtype=np.int64)
    unknown = ~np.isin(values, ids)
    if unknown.any():
        raise UserError(
            f"{file}: {int(unknown.sum())} annotations have an `{name}` that `{table}` does not list: "
            f"{shortened(np.unique(values[unknown]).tolist())}; take the annotations out, or list these in `{table}`"
        )
    return np.searchsorted(ids, values)


def _check_rles(file: Path, given: list[dict[str, Any]], images: list[CocoImage]) -> None:
    for one, image in zip(given, images):
        rle = one.get("segmentation")
        if isinstance(rle, dict) and (fault := rle_fault(rle, image.height, image.width)):
            raise UserError(f"{file}: the run-length encoding of annotation {one['id']}: {fault}; encode the mask anew")


def _without_short(segmentations: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """Polygons with fewer than three points go; an object that has no other is left with its box."""
    kept: list[Any] = []
    short = bare = 0
    for one in segmentations:
        if isinstance(one, list):
            polygons = [polygon for polygon in one if len(polygon) >= 2 * POINTS]
            short += len(one) - len(polygons)
            bare += bool(one) and not polygons
            one = polygons or None
        kept.append(one)
    return kept, {"short_polygons": short, "left_without_polygon": bare}


def _fit_boxes(split: CocoSplit) -> tuple[NDArray[Any], dict[str, int]]:
    """bool [M] whether an object can be trained on, as mmdetection's `CocoDataset` has it, and what is odd about boxes,
    crowds aside.
    """
    low, high, limits = split.boxes[:, :2], split.boxes[:, :2] + split.boxes[:, 2:], split.sizes()[split.image]
    flat = ((split.boxes[:, 2:] <= 0).any(axis=1) | (split.areas <= 0)) & ~split.crowd
    outside = ((high <= 0) | (low >= limits)).any(axis=1) & ~flat & ~split.crowd
    tiny = (split.boxes[:, 2:] < 1).any(axis=1) & ~(flat | outside | split.crowd)
    trained = ~(flat | outside | tiny | split.crowd)
    clipped = ((low < -SLACK) | (high > limits + SLACK)).any(axis=1) & trained
    counts = {"no_area": flat, "outside": outside, "below_pixel": tiny, "clipped": clipped}
    return trained, {name: int(rows.sum()) for name, rows in counts.items()}
