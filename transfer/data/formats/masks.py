"""Images with a mask each, the class of every pixel: ADE20k, VOC 2012 and plain folders, by keys of the YAML.

images, masks   folders; `{}` stands for the name of the split (images/{}, masks/{})
train, val      names of the splits
lists           list of the names of a split's images, without suffix, as ImageSets/{}.txt; else all in the folder
classes         names, their number, or a file with a name a line; else `classes.txt`, else the numbers that occur
first           value of the first class in the masks; those below are ignored, as 255 is (0)

Masks are images of one channel of 8 bits, or with a palette, of the size of their image. Shapes: H x W pixels.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from transfer.core.errors import UsageError, UserError, shortened
from transfer.core.files import read_lines
from transfer.data.formats.folders import FoundLayout, choose_splits, scan_images
from transfer.data.layouts import SPLITS
from transfer.data.loading.read_image import open_image
from transfer.data.spec import DatasetSpec, find_root, generated_root, text_option
from transfer.data.splits.integrity import read_once
from transfer.data.splits.split import FileSplit
from transfer.data.toy.masks import GENERATORS

IGNORED, NO_CLASS = 255, 254
"""Entries of `MaskSplit.table` besides labels."""


@dataclass(eq=False)
class MaskSplit(FileSplit):
    """A split of image files, each with a mask; `labels` are not used."""

    masks: FileSplit
    table: NDArray[Any]
    """uint8 [256]: the label of each value in a mask, 0..C-1, or `IGNORED`, or `NO_CLASS`."""

    def mask(self, index: int) -> Image.Image:
        """Return the labels of an image's pixels as an image of one channel. Raises UserError."""
        return Image.fromarray(self.table[self._values(index)])

    def checked(self, index: int) -> Image.Image:
        """Return the image. Raises UserError if it or its mask cannot be read, or the sizes differ."""
        image, (height, width) = super().checked(index), self._values(index).shape
        if image.size != (width, height):
            size = f"{width} x {height} pixels, its image {self.path(index)} {image.width} x {image.height}"
            raise UserError(f"{self.masks.path(index)}: {size}; save the mask in the size of its image")
        return image

    def present(self) -> NDArray[Any]:
        """Return the labels that occur in masks that can be read. Raises UserError for a value that is no class."""
        found: dict[int, int] = {}
        listing = ["values of masks", *self.stamps(range(len(self)))]
        for place, values in enumerate(read_once(self._occurring, listing, f"reading masks of {self.name}")):
            found |= {value: place for value in values if value not in found}
        if wrong := [value for value in found if self.table[value] == NO_CLASS]:
            classes = np.flatnonzero(self.table < NO_CLASS)
            raise UserError(
                f"{self.masks.path(found[wrong[0]])}: value {wrong[0]} is none of the classes {classes[0]} "
                f"to {classes[-1]}; correct the mask, or `classes` in the YAML of the dataset ({IGNORED} is ignored)"
            )
        labels = self.table[[*found]]
        return np.unique(labels[labels != IGNORED])

    def parts(self) -> dict[str, FileSplit]:
        """Return the masks."""
        return {"masks": self.masks}

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return path, size and time of each image and its mask."""
        rows = [*indices]
        return list(map("\0".join, zip(super().stamps(rows), self.masks.stamps(rows))))

    def _values(self, index: int) -> NDArray[Any]:
        with open_image(self.masks.path(index)) as file:
            if file.mode not in ("1", "L", "P"):
                raise ValueError(f"mode {file.mode}; a mask has one channel of 8 bits or a palette, a class each pixel")
            return np.asarray(file).astype(np.uint8)

    def _occurring(self, index: int) -> list[int]:
        try:
            return np.unique(self._values(index)).tolist()
        except UserError:  # `checked` says so
            return []

    def _select_fields(self, keep: NDArray[Any]) -> dict[str, Any]:
        return {"masks": self.masks.select(keep)}


def masks(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read images and masks; see the keys above. Raises UserError for images without a mask, or wrong values."""
    forms = [text_option(spec, kind) or f"{kind}/{{}}" for kind in ("images", "masks")]
    lists = text_option(spec, "lists")

    def entries(name: str) -> tuple[str, ...]:
        return (*(f"{form.format(name)}/" for form in forms), *([lists.format(name)] if lists else []))

    usual = [name for key, names in SPLITS.items() for name in ([spec.options[key]] if key in spec.options else names)]
    root = generated_root(spec, GENERATORS) or find_root(spec, data, tuple(map(entries, usual)))

    def find(name: str) -> tuple[str, ...] | None:
        return entries(name) if all((root / entry).exists() for entry in entries(name)) else None

    found, notes = choose_splits(spec, root, find, lambda *_: "", form=forms[0])
    classes, first = spec.options.get("classes"), spec.options.get("first", 0)
    if type(first) is not int or not isinstance(classes, int | str | list | None):
        said = f"`first` is {first!r}, `classes` {classes!r}"
        raise UsageError(f"{spec.name}: {said}; see docs/guide/dataset-yaml.md, Masks")
    splits = {key: _read(key, root, places, first) for key, places in found.items()}
    if isinstance(classes, str) or (classes is None and (root / "classes.txt").is_file()):
        classes = [line.strip() for line in read_lines(root / (classes or "classes.txt")) if line.strip()]
    if classes is None:
        classes = max(int(split.present().max(initial=0)) for split in splits.values()) + 1 - first
    names = tuple(map(str, classes if isinstance(classes, list) else range(first, first + classes)))
    if not 1 < len({*names}) == len(names) <= NO_CLASS - first:
        at_most = f"between 2 and {NO_CLASS - first} different names, or their number"
        raise UserError(f"{spec.name}: `classes` are {shortened(names)}; in its YAML they must be {at_most}")
    table = np.repeat(np.array([IGNORED, NO_CLASS], np.uint8), [first, 256 - first])
    table[first : first + len(names)], table[IGNORED] = np.arange(len(names)), IGNORED
    splits = {key: replace(split, table=table) for key, split in splits.items()}
    return FoundLayout(classes=names, train=splits.get("train"), val=splits.get("val"), notes=notes, sparse=True)


def _read(split: str, root: Path, places: tuple[str, ...], first: int) -> MaskSplit:
    """Return a split, in whose masks every value is a label, from folders of images and masks, and perhaps a list.

    The labels of the masks are the value of the first class, for the digest. Raises UserError.
    """
    images, labelled = (_by_stem(root / place) for place in places[:2])
    stems = [*images]
    for listed in places[2:]:
        stems = [line.strip() for line in read_lines(root / listed) if line.strip()]
    parts = []
    for place, files in zip(places, (images, labelled)):
        if missing := [stem for stem in stems if stem not in files]:
            kind = "image" if files is images else "mask"
            lacking = f"{len(missing)} of {len(stems)} {split} images have no {kind} here: {shortened(missing)}"
            raise UserError(f"{root / place}: {lacking}; add it, or take the image out of the split")
        parts.append(FileSplit.of(split, root / place, [files[stem] for stem in stems], [first] * len(stems)))
    one, other = parts
    every = np.arange(256, dtype=np.uint8)
    return MaskSplit(split, np.zeros(len(stems), np.int64), one.names, one.sizes, one.folder, other, every)


def _by_stem(folder: Path) -> dict[str, str]:
    """Return the images in a folder by their paths without suffix. Raises UserError where two have one."""
    names = scan_images(folder)[0]
    files = {str(PurePosixPath(name).with_suffix("")): name for name in names}
    if twice := sorted({*names} - {*files.values()}):
        raise UserError(
            f"{folder}: other images have the same name with another suffix: {shortened(twice)}; remove one"
        )
    return files
