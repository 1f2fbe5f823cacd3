"""Images of a data set in COCO's format: checks that they exist, are whole and of the stated size; `--subset N`.

Letters: I images.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from backbones.data.loading.read_image import DAMAGED, read_image
from backbones.data.spec import DatasetSpec
from backbones.data.splits.integrity import raise_if_damaged, read_once
from backbones.data.splits.subsets import content_digests
from backbones.errors import UserError
from tasks.data.coco_split import WORDS, CocoSplit

Size = tuple[int, int]
Splits = dict[str, CocoSplit]
JPEG, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
SHOWN = 5


def check_images(spec: DatasetSpec, splits: Splits, *, skip: bool) -> tuple[Splits, int]:
    """Check the images; return the splits without damaged ones, and their number.

    Raises:
        UserError: an image is damaged, unless `skip`, or its size is not the stated one.
    """
    sizes = {name: image_sizes(split, name=spec.name) for name, split in splits.items()}
    bad = [
        split.path(index) for name, split in splits.items() for index, size in enumerate(sizes[name]) if size is None
    ]
    raise_if_damaged(bad, sum(map(len, sizes.values())), spec.name, skip=skip)
    for name, split in splits.items():
        wrong = [
            f"\n  {path}: {size[0]} x {size[1]}, stated {image.width} x {image.height}"
            for path, image, size in zip(split.paths(), split.images, sizes[name], strict=True)
            if size not in (None, (image.width, image.height))
        ]
        if wrong:
            raise UserError(
                f"{split.file}: {len(wrong)} images are of another size (width x height) than it states:"
                f"{''.join(wrong[:SHOWN])}\nrestore the images, or correct `width` and `height`"
            )
    if bad:
        splits = {
            name: split.select(np.array([size is not None for size in sizes[name]])) for name, split in splits.items()
        }
    return splits, len(bad)


def choose_images(splits: Splits, n: int, *, skip: bool) -> Splits:
    """Return N images of each split: first those with objects, ranked by content, then the others."""
    have = {name: len(split.images) for name, split in splits.items()}
    if n < 1 or n > min(have.values()):
        listed = " and ".join(f"{count} {WORDS[name]}" for name, count in have.items())
        raise UserError(f"subset {n}: the data set has {listed} images")
    return {name: split.select(_first(split, n, skip=skip)) for name, split in splits.items()}


def _first(split: CocoSplit, n: int, *, skip: bool) -> NDArray[Any]:
    """Return bool [I]: the images kept. Those without objects are read only if those with objects are too few."""
    full = split.with_objects()
    ranked: list[int] = []
    for group in (np.flatnonzero(full), np.flatnonzero(~full)):
        if len(ranked) < n and len(group):
            digests = dict(zip(group.tolist(), content_digests(split.files(), group, skip=skip)))
            ranked += sorted(digests, key=lambda index: (digests[index], split.images[index].file_name))
    keep = np.zeros(len(split.images), dtype=bool)
    keep[ranked[:n]] = True
    return keep


def image_sizes(split: CocoSplit, *, name: str) -> list[Size | None]:
    """Return width and height in pixels of every image, as stated by its header; None for a damaged one.

    A JPEG with its end marker is not decoded; every other file is, so that truncated ones are found. Each state of a
    data set is read once, see `read_once`.

    Args:
        split: the images.
        name: name of the data set, for messages.
    """
    listing = ["sizes", *split.files().stamps(range(len(split.images)))]
    sizes = read_once(lambda index: _size(split.path(index)), listing, f"checking {name}")
    return [size and (size[0], size[1]) for size in sizes]


def _size(path: str) -> Size | None:
    try:
        with Image.open(path) as image:
            size = image.size
        if not _ends_as_jpeg(path):
            read_image(path)
    except (*DAMAGED, Image.DecompressionBombError, UnidentifiedImageError, UserError):
        return None
    return size


def _ends_as_jpeg(path: str) -> bool:
    """Return whether a file is a JPEG with its end marker, absent from coded data and from truncated files."""
    with Path(path).open("rb") as file:
        start = file.read(len(JPEG))
        file.seek(-len(JPEG_END), os.SEEK_END)
        return start == JPEG and file.read() == JPEG_END
