"""One split of a dataset in COCO's format, its images checked, and its segmentations in a few blocks of memory.

Shapes: I images, M objects, of which some are crowds.
"""

import importlib
import marshal
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from transfer.core.errors import UserError
from transfer.core.machine_errors import install_command
from transfer.data.layouts import SPLIT_TITLES
from transfer.data.loading.read_image import open_image, orientation, read_image
from transfer.data.splits.integrity import check_split, content_digests
from transfer.data.splits.manifest import packed
from transfer.data.splits.split import JPEG, FileSplit, Look


@dataclass(frozen=True, eq=False)
class Segmentations:
    """Segmentations as in COCO's files: lists of polygons [x, y, x, y, ...] in pixels, run-length encodings
    {"size", "counts"}, or None.

    Processes that load images are forked, and share memory until it is written to. Python writes to every object that
    it reads, so that lists of objects would be copied page by page into each of them: gigabytes for COCO's polygons.
    Hence each is kept as bytes, as `marshal` writes it, with a polygon as its numbers in float64.
    """

    block: NDArray[Any]
    """The bytes of all of them, uint8."""
    ends: NDArray[Any]
    """Where each begins and ends in `block`, int64."""
    rows: NDArray[Any]
    """The place of each object [M] among them, int64."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        start, stop = self.ends[self.rows[index]], self.ends[self.rows[index] + 1]
        value = marshal.loads(self.block[start:stop].tobytes())
        return [array("d", polygon).tolist() for polygon in value] if isinstance(value, list) else value

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    @property
    def present(self) -> NDArray[Any]:
        """Return whether each object has a segmentation, bool [M]."""
        return np.diff(self.ends)[self.rows] > len(marshal.dumps(None))

    def select(self, rows: NDArray[Any]) -> Self:
        """Return the segmentations of these rows, int64 [M]; the bytes are shared."""
        return replace(self, rows=self.rows[rows])

    @classmethod
    def collect(cls, values: Iterable[Any]) -> Self:
        """Return the segmentations of many objects, each in COCO's form: polygons, run-length encodings, or None."""
        block, ends = packed(map(_marshalled, values))
        return cls(block, ends, np.arange(len(ends) - 1))


def _marshalled(value: Any) -> bytes:
    polygons = [array("d", polygon).tobytes() for polygon in value] if isinstance(value, list) else value
    return marshal.dumps(polygons or None)


def encoded_mask(mask: Any, height: int, width: int) -> dict[str, Any]:
    """Return the compressed run-length encoding of polygons, of lengths, or of an encoding."""
    library = mask_library()
    if isinstance(mask, list):
        mask = library.merge(library.frPyObjects(mask, height, width))
    elif isinstance(mask["counts"], list):
        mask = library.frPyObjects(mask, *mask["size"])
    return mask


def mask_library(module: str = "core.mask") -> Any:
    """Return faster-coco-eval's functions on run-length encodings. Raises UserError when it is not installed."""
    try:
        return importlib.import_module(f"faster_coco_eval.{module}")
    except ImportError as error:
        hint = install_command("detection")
        raise UserError(f"masks need faster-coco-eval, which cannot be imported ({error}); `{hint}`") from None


JPEG_END = b"\xff\xd9"
OBJECT_COLUMNS = ("ids", "image", "label", "boxes", "areas", "crowd", "ignored", "trained")


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
    """Index [M] of each object's class, int64; -1 for a region to be ignored by every class."""
    boxes: NDArray[Any]
    """Boxes [M, 4] (x, y, width, height) in pixels as in the file, or of the polygons, float64."""
    areas: NDArray[Any]
    """Areas [M] in square pixels, float64: as in the file, else of the mask, or of the box without one."""
    crowd: NDArray[Any]
    """Whether each object [M] is a crowd, or a region to be ignored: neither right nor wrong in scores, and in training
    background unless `--ignore-iof` says otherwise."""
    ignored: NDArray[Any]
    """Whether each object [M] has `ignore: 1`: left out of training as by mmdetection, and scored as by pycocotools."""
    segmentations: Segmentations
    """Segmentations [M]: lists of polygons [x, y, x, y, ...], or {"size", "counts"}; None for objects without."""
    trained: NDArray[Any]
    """Whether each object [M] is trained on: no crowd, not ignored, sides of a pixel or more, and area in the image."""
    notes: Sequence[str] = ()
    """What was found odd in the file."""
    upright: bool = False
    """Whether images are turned by their EXIF orientation; else they are read as stored."""

    @classmethod
    def unlabelled(cls, files: FileSplit) -> Self:
        """Return images without objects, with ids from 1. Raises UserError for an unreadable one."""
        empty: dict[str, Any] = dict.fromkeys(("ids", "image", "label"), np.zeros(0, np.int64))
        empty |= dict.fromkeys(("crowd", "ignored", "trained"), np.zeros(0, bool))
        empty |= {"boxes": np.zeros((0, 4)), "areas": np.zeros(0), "segmentations": Segmentations.collect([])}
        sizes = _sizes(check_split(files, name="new images")[1], files.upright)
        images = [CocoImage(number, name, *size) for number, (name, size) in enumerate(zip(files.names, sizes), 1)]
        empty |= {"name": files.name, "folder": files.folder, "file": files.folder, "content": ""}
        return cls(images=images, upright=files.upright, **empty)

    def path(self, index: int) -> str:
        """Return the file of an image."""
        return f"{self.folder}/{self.images[index].file_name}"

    def read(self, index: int) -> Image.Image:
        """Return an image. Raises UserError for one that cannot be read."""
        return read_image(self.path(index), upright=self.upright)

    def look(self, index: int) -> Look:
        """Return orientation, width and height of an image as stored. Raises UserError for one that cannot be read.

        A JPEG with its end marker is not decoded; every other file is, so that truncated ones are found.
        """
        with open_image(self.path(index)) as file:
            image = file if _ends_as_jpeg(self.path(index)) else read_image(self.path(index))
            return [orientation(image), *image.size]

    def paths(self) -> list[str]:
        """Return the files [I] of all images."""
        return [self.path(index) for index in range(len(self.images))]

    def files(self) -> FileSplit:
        """Return the images without their objects."""
        names = (image.file_name for image in self.images)
        return FileSplit.of(self.name, self.folder, names, upright=self.upright)

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

    @property
    def unmasked(self) -> int:
        """Return the number of objects without a segmentation, crowds not among them."""
        return int((~self.crowd & ~self.segmentations.present).sum())

    def with_objects(self) -> NDArray[Any]:
        """Return bool [I]: whether each image has an object to train on."""
        return np.bincount(self.image[self.trained], minlength=len(self.images)) > 0

    def select(self, keep: NDArray[Any]) -> "CocoSplit":
        """Return the split with only the images where `keep`, bool [I], is true, and their objects."""
        rows = np.flatnonzero(keep[self.image])
        columns = {name: getattr(self, name)[rows] for name in OBJECT_COLUMNS}
        columns["image"] = (np.cumsum(keep) - 1)[columns["image"]]
        images = [image for image, is_wanted in zip(self.images, keep) if is_wanted]
        return replace(self, images=images, segmentations=self.segmentations.select(rows), **columns)


Splits = dict[str, CocoSplit]


def choose_images(splits: Splits, n: int, *, skip: bool) -> Splits:
    """Return N images of each split: first those with objects, ranked by content, then the others.

    Raises:
        UserError: a split has fewer.
    """
    have = {name: len(split.images) for name, split in splits.items()}
    if n > min(have.values()):
        listed = " and ".join(f"{number} {SPLIT_TITLES[name]}" for name, number in have.items())
        raise UserError(f"subset {n}: the dataset has {listed} images")
    chosen: Splits = {}
    for name, split in splits.items():
        full, ranked = split.with_objects(), list[int]()
        for group in (np.flatnonzero(full), np.flatnonzero(~full)):
            if len(ranked) < n and len(group):
                digests = dict(zip(group.tolist(), content_digests(split.files(), group, skip=skip)))
                ranked += sorted(digests, key=lambda index: (digests[index], split.images[index].file_name))
        chosen[name] = split.select(np.isin(np.arange(len(full)), ranked[:n]))
    return chosen


def check_images(name: str, splits: Splits, *, skip: bool) -> tuple[Splits, int, list[str]]:
    """Check the images of a dataset; return the splits without unreadable ones, the number of these, and notes.

    Raises:
        UserError: an image cannot be read, unless `skip`, or its size is not the stated one.
    """
    readable, skipped, notes = {}, 0, list[str]()
    for part, split in splits.items():
        bad, looks, read_notes = check_split(split.files(), name=name, skip=skip, look=split.look)
        readable[part] = split.select(~np.isin(np.arange(len(split.images)), bad)) if len(bad) else split
        _check_sizes(readable[part], looks)
        skipped += len(bad)
        rule = "" if split.upright else " (`exif: ignore`)"
        notes += [f"{SPLIT_TITLES[part]}{rule}: {note}" for note in read_notes]
    return readable, skipped, notes


def _sizes(looks: Iterable[Look], upright: bool) -> list[tuple[int, int]]:
    """Return width and height of images, as they are read."""
    return [(y, x) if upright and turn > 4 else (x, y) for turn, x, y, *_ in looks]


def _check_sizes(split: CocoSplit, looks: list[Look]) -> None:
    """Raise UserError for images of another size than their annotations state."""
    stated, sizes = [(image.width, image.height) for image in split.images], _sizes(looks, split.upright)
    wrong = [
        f"\n  {path}: {size[0]} x {size[1]}, stated {want[0]} x {want[1]}"
        for path, size, want in zip(split.paths(), sizes, stated, strict=True)
        if size != want
    ]
    if not wrong:
        return
    cure = "restore the original images: the boxes refer to their pixels"
    if all(want in (size, size[::-1]) for size, want in zip(sizes, stated)):
        cure = "width and height are swapped, and `exif` does not explain all of them; correct the file"
    if _sizes(looks, not split.upright) == stated:
        rule = "as stored: `exif: ignore`" if split.upright else "turned by their EXIF orientation: `exif: apply`"
        cure = f"it describes the images {rule} in the dataset's YAML file reads them so"
    fault = f"{len(wrong)} images do not have the size (width x height) that it states:{''.join(wrong[:5])}"
    raise UserError(f"{split.file}: {fault}\n{cure}")


def _ends_as_jpeg(path: str) -> bool:
    """Return whether a file is a JPEG with its end marker, absent from coded data and from truncated files."""
    with Path(path).open("rb") as file:
        start = file.read(len(JPEG))
        file.seek(-len(JPEG_END), os.SEEK_END)
        return start == JPEG and file.read() == JPEG_END
