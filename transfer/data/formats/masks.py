"""Images with a mask each, the class of every pixel: ADE20k, VOC 2012 and plain folders, by keys of the YAML.

images, masks   folders; `{}` stands for the name of the split (images/{}, masks/{}); without it all is to train on
train, val      names of the splits
lists           list of the names of a split's images, without suffix, as ImageSets/{}.txt; else all in the folder
classes         names, or their number; else `classes.txt` has a name a line
first           value of the first class in the masks; those below are ignored, as 255 is (0)

Masks are images of one channel of 8 bits, or with a palette, of the size of their image. Shapes: C classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from transfer.core.errors import UserError, shortened
from transfer.core.files import read_lines
from transfer.data.formats.folders import FoundLayout, choose_splits
from transfer.data.layouts import SPLITS, missing_entries
from transfer.data.listing import scan_images
from transfer.data.loading.read_image import open_image
from transfer.data.spec import DatasetSpec, find_root, text_option
from transfer.data.splits.split import FileSplit

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
        with open_image(self.masks.path(index)) as file:
            if file.mode not in ("1", "L", "P"):
                raise ValueError(f"mode {file.mode}; a mask has one channel of 8 bits or a palette, a class each pixel")
            values = np.array(file, np.uint8)
        labels = self.table[values]
        if (wrong := values[labels == NO_CLASS]).size:
            fix = f"correct it, or `classes` of the dataset ({IGNORED} is ignored)"
            raise UserError(f"{self.masks.path(index)}: {wrong[0]} is none of the {len(self.present())} classes; {fix}")
        return Image.fromarray(labels)

    def checked(self, index: int) -> Image.Image:
        """Return the image. Raises UserError if it or its mask cannot be used, or the sizes differ."""
        image, mask = super().checked(index), self.mask(index)
        if image.size != mask.size:
            sizes = "{} x {} pixels, its image {} x {}".format(*mask.size, *image.size)
            raise UserError(f"{self.masks.path(index)}: {sizes}; save the mask in the size of its image")
        return image

    def present(self) -> NDArray[Any]:
        """Return all labels: which of them occur is not looked up."""
        return np.unique(self.table[self.table < NO_CLASS])

    def parts(self) -> dict[str, FileSplit]:
        """Return the masks."""
        return {"masks": self.masks}

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return path, size and time of each image and its mask, and what the values of masks mean."""
        rows, table = [*indices], self.table.tobytes().hex()
        return ["\0".join((*files, table)) for files in zip(super().stamps(rows), self.masks.stamps(rows))]

    def _select_fields(self, keep: NDArray[Any]) -> dict[str, Any]:
        return {"masks": self.masks.select(keep)}


def masks(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read images and masks; see the keys above. Raises UserError for images without a mask, or for wrong keys."""
    forms = [f"{text_option(spec, kind) or f'{kind}/{{}}'}/" for kind in ("images", "masks")]
    forms += [lists] if (lists := text_option(spec, "lists")) else []

    def entries(name: str) -> tuple[str, ...]:
        return tuple(form.format(name) for form in forms)

    usual = [name for key, names in SPLITS.items() for name in ([spec.options[key]] if key in spec.options else names)]
    usual = usual if "{}" in "".join(forms) else usual[:1]  # all images lie in one folder
    root = find_root(spec, data, tuple(map(entries, usual)))
    held = {name: entries(name) for name in usual if not missing_entries(root, entries(name))}
    found, notes = choose_splits(spec, root, held.get, lambda *_: "", form=forms[0])
    if spec.held_out and "val" in found:
        raise UserError(f"{spec.name}: {found['val'][0]} is there, and `held_out` makes a val split; remove one")
    if "val" not in found:
        share = f"{spec.held_out:g} of the images are held out as the val split" if spec.held_out else ""
        notes.append(share or "`held_out: 0.2` in its YAML takes a fifth of the images for it")
    first = int(spec.options.get("first", 0))
    names = _class_names(spec, root, first)
    table = np.full(256, NO_CLASS, np.uint8)
    table[:first], table[first : first + len(names)], table[IGNORED] = IGNORED, np.arange(len(names)), IGNORED
    splits = {key: _read(key, root, places, first, table) for key, places in found.items()}
    return FoundLayout(classes=names, train=splits.get("train"), val=splits.get("val"), notes=notes)


def _class_names(spec: DatasetSpec, root: Path, first: int) -> tuple[str, ...]:
    """Return the names of the classes, which are numbers from `first` where only their number is known."""
    classes, listed = spec.options.get("classes"), root / "classes.txt"
    if classes is None and listed.is_file():
        classes = read_lines(listed)
    if isinstance(classes, int):
        classes = range(first, first + classes)
    names = tuple(map(str, classes)) if isinstance(classes, list | range) else ()
    if not 1 < len({*names}) == len(names) <= NO_CLASS - first:
        fix = f"between 2 and {NO_CLASS - first} different names, or their number; or write {listed}, a name a line"
        raise UserError(f"{spec.name}: `classes` are {shortened(names)}; set in its YAML {fix}")
    return names


def _read(name: str, root: Path, places: tuple[str, ...], first: int, table: NDArray[Any]) -> MaskSplit:
    """Return a split from folders of images and masks, and perhaps a list. Raises UserError.

    The labels of the masks are the value of the first class, for the digest.
    """
    files = [{image.rpartition(".")[0]: image for image in scan_images(root / place)[0]} for place in places[:2]]
    stems = [stem for listed in places[2:] for stem in read_lines(root / listed)] or [*files[0]]
    for place, found in zip(places, files):
        if missing := [stem for stem in stems if stem not in found]:
            lacking = f"{len(missing)} of {len(stems)} {name} images have no file here: {shortened(missing)}"
            raise UserError(f"{root / place}: {lacking}; add it, or remove the image from the split")
    images, labelled = ([found[stem] for stem in stems] for found in files)
    masks = FileSplit.of(name, root / places[1], labelled, [first] * len(stems))
    return MaskSplit.of(name, root / places[0], images, masks=masks, table=table)
