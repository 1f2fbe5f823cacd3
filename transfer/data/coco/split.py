"""One split of a dataset in COCO's format, and the segmentations of its objects in a few blocks of memory.

Shapes: I images, M objects, of which some are crowds, P polygons, N coordinates.
"""

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from transfer.core.errors import UserError
from transfer.data.loading.read_image import read_image
from transfer.data.splits.manifest import PackedNames
from transfer.data.splits.split import FileSplit


@dataclass(frozen=True, eq=False)
class Segmentations:
    """Segmentations as in COCO's files: lists of polygons [x, y, x, y, ...] in pixels, run-length encodings
    {"size", "counts"}, or None.

    Processes that load images are forked, and share memory until it is written to. Python writes to every object that
    it reads, so that lists of objects would be copied page by page into each of them: gigabytes for COCO's polygons.
    """

    coordinates: NDArray[Any]
    """All coordinates [N] in pixels, float64."""
    ends: NDArray[Any]
    """Where each polygon ends in `coordinates` [P], int64; it begins where the one before ends."""
    first: NDArray[Any]
    """The first polygon of each object [M], int64."""
    last: NDArray[Any]
    """The polygon behind the last of each object [M], int64."""
    encoding: NDArray[Any]
    """The place of each object in `encodings` [M], int64; -1 for those without."""
    encodings: PackedNames
    """Run-length encodings as JSON."""

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> Any:
        if self.encoding[index] >= 0:
            return json.loads(self.encodings[int(self.encoding[index])])
        polygons = range(int(self.first[index]), int(self.last[index]))
        return [self.coordinates[self._start(polygon) : self.ends[polygon]].tolist() for polygon in polygons] or None

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def _start(self, polygon: int) -> int:
        return int(self.ends[polygon - 1]) if polygon else 0

    @property
    def present(self) -> NDArray[Any]:
        """Return whether each object has a segmentation, bool [M]."""
        return (self.encoding >= 0) | (self.first < self.last)

    def select(self, rows: NDArray[Any]) -> Self:
        """Return the segmentations of these rows, int64 [M]; the coordinates are shared."""
        return replace(self, first=self.first[rows], last=self.last[rows], encoding=self.encoding[rows])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays, for `from_arrays`."""
        own = {name: getattr(self, name) for name in ("coordinates", "ends", "first", "last", "encoding")}
        return own | dict(zip(("encodings", "encodings_ends"), self.encodings.arrays(), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return what `arrays` was taken from."""
        own = {name: arrays[name] for name in ("coordinates", "ends", "first", "last", "encoding")}
        return cls(**own, encodings=PackedNames.from_arrays(arrays["encodings"], arrays["encodings_ends"]))

    @classmethod
    def collect(cls, values: Sequence[Any]) -> Self:
        """Return the segmentations of many objects, each in COCO's form: polygons, run-length encodings, or None."""
        encoded = np.array([isinstance(value, dict) for value in values], dtype=bool)
        polygons = [[] if isinstance(value, dict) else value or [] for value in values]
        flat = list(chain.from_iterable(polygons))
        last = np.cumsum([len(of_object) for of_object in polygons], dtype=np.int64)
        return cls(
            coordinates=np.fromiter(chain.from_iterable(flat), dtype=np.float64),
            ends=np.cumsum([len(polygon) for polygon in flat], dtype=np.int64),
            first=np.concatenate([[0], last[:-1]]).astype(np.int64)[: len(last)],
            last=last,
            encoding=np.where(encoded, np.cumsum(encoded) - 1, -1).astype(np.int64),
            encodings=PackedNames(
                json.dumps(value, separators=(",", ":")) for value in values if isinstance(value, dict)
            ),
        )


def encoded_mask(mask: Any, height: int, width: int) -> dict[str, Any]:
    """Return the compressed run-length encoding of polygons, of lengths, or of an encoding."""
    library = mask_library()
    if isinstance(mask, list):
        mask = library.merge(library.frPyObjects(mask, height, width))
    elif isinstance(mask["counts"], list):
        mask = library.frPyObjects(mask, *mask["size"])
    return mask


def mask_library() -> Any:
    """Return faster-coco-eval's functions on run-length encodings. Raises UserError when it is not installed."""
    try:
        return importlib.import_module("faster_coco_eval.core.mask")
    except ImportError as error:
        hint = "`pip install -e '.[detection]'`"
        raise UserError(f"masks need faster-coco-eval, which cannot be imported ({error}); {hint}") from None


COLUMNS = ("ids", "image", "label", "boxes", "areas", "crowd", "ignored", "masked", "trained")
WORDS = {"train": "training", "val": "validation"}


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
    """Areas [M] in square pixels, float64: as in the file, else of the mask, or of the box without one."""
    crowd: NDArray[Any]
    """Whether each object [M] is a crowd: neither right nor wrong in scores, background in training."""
    ignored: NDArray[Any]
    """Whether each object [M] has `ignore: 1`: left out of training as by mmdetection, and scored as by pycocotools."""
    segmentations: Segmentations
    """Segmentations [M]: lists of polygons [x, y, x, y, ...], or {"size", "counts"}; None for objects without."""
    masked: NDArray[Any]
    """Whether each object [M] has a segmentation."""
    trained: NDArray[Any]
    """Whether each object [M] is trained on: no crowd, not ignored, sides of a pixel or more, and area in the image."""
    upright: bool = False
    """Whether images are turned by their EXIF orientation; else they are read as stored."""

    def path(self, index: int) -> str:
        """Return the file of an image."""
        return f"{self.folder}/{self.images[index].file_name}"

    def read(self, index: int) -> Image.Image:
        """Return an image. Raises UserError for one that cannot be read."""
        return read_image(self.path(index), upright=self.upright)

    def paths(self) -> list[str]:
        """Return the files [I] of all images."""
        return [self.path(index) for index in range(len(self.images))]

    def files(self) -> FileSplit:
        """Return the images without their objects."""
        return FileSplit.unlabelled(self.name, self.folder, (image.file_name for image in self.images))

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

    def select_objects(self, keep: NDArray[Any]) -> "CocoSplit":
        """Return the split with all images and only the objects where `keep`, bool [M], is true."""
        rows = np.flatnonzero(keep)
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(self, segmentations=self.segmentations.select(rows), **columns)

    def select(self, keep: NDArray[Any]) -> "CocoSplit":
        """Return the split with only the images where `keep`, bool [I], is true, and their objects."""
        rest = self.select_objects(keep[self.image])
        images = [image for image, kept in zip(self.images, keep) if kept]
        return replace(rest, images=images, image=(np.cumsum(keep) - 1)[rest.image])
