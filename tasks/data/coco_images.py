"""Images of a data set in COCO's format: checks that they exist, are whole and of the stated size; `--subset N`.

Letters: I images.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from backbones.data.array_index import stamp_of
from backbones.data.loading.read_image import DAMAGED, read_image
from backbones.data.spec import DatasetSpec
from backbones.data.splits.integrity import raise_if_damaged, read_verdicts, stat_files
from backbones.data.splits.packed_names import PackedNames
from backbones.data.splits.split import FileSplit
from backbones.data.splits.subsets import content_digests
from backbones.errors import UserError
from tasks.data.coco_split import WORDS, CocoSplit

Size = tuple[int, int]
Stats = dict[str, os.stat_result]
Splits = dict[str, CocoSplit]
JPEG, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
SHOWN = 5


def stats_of(spec: DatasetSpec, split: CocoSplit) -> Stats:
    """Return file size and time of every image. Raises UserError that names the missing ones."""
    try:
        return stat_files(split.paths(), name=spec.name)
    except UserError as error:
        raise UserError(f"{error}\n{split.file} names them: extract the archive of the images again") from None


def check_images(spec: DatasetSpec, splits: Splits, stats: Stats, *, skip: bool) -> tuple[Splits, int]:
    """Check the images; return the splits without damaged ones, and their number.

    Raises:
        UserError: an image is damaged, unless `skip`, or its size is not the stated one.
    """
    sizes = image_sizes({path: stats[path] for split in splits.values() for path in split.paths()}, name=spec.name)
    bad = sorted(path for path, size in sizes.items() if size is None)
    raise_if_damaged(bad, len(sizes), spec.name, skip=skip)
    for split in splits.values():
        stated = zip(split.paths(), split.images)
        wrong = [
            f"\n  {path}: {sizes[path][0]} x {sizes[path][1]}, stated {image.width} x {image.height}"  # type: ignore[index]
            for path, image in stated
            if sizes[path] not in (None, (image.width, image.height))
        ]
        if wrong:
            raise UserError(
                f"{split.file}: {len(wrong)} images are of another size (width x height) than it states:"
                f"{''.join(wrong[:SHOWN])}\nrestore the images, or correct `width` and `height`"
            )
    if bad:
        gone = set(bad)
        splits = {
            name: split.select(np.array([path not in gone for path in split.paths()])) for name, split in splits.items()
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
    files = FileSplit(
        name=split.name,
        labels=np.zeros(len(split.images), dtype=np.int64),
        names=PackedNames(image.file_name for image in split.images),
        sizes=np.zeros(len(split.images), dtype=np.int64),
        folder=split.folder,
    )
    full = split.with_objects()
    ranked: list[int] = []
    for group in (np.flatnonzero(full), np.flatnonzero(~full)):
        if len(ranked) < n and len(group):
            digests = dict(zip(group.tolist(), content_digests(files, group, skip=skip)))
            ranked += sorted(digests, key=lambda index: (digests[index], split.images[index].file_name))
    keep = np.zeros(len(split.images), dtype=bool)
    keep[ranked[:n]] = True
    return keep


def image_sizes(stats: Stats, *, name: str) -> dict[str, Size | None]:
    """Return width and height in pixels of every file, as stated by its header; None for a damaged one.

    A JPEG with its end marker is not decoded; every other file is, so that truncated ones are found. Each state of a
    data set is read once, see `read_verdicts`.

    Args:
        stats: result of `integrity.stat_files`.
        name: name of the data set, for messages.
    """
    paths = sorted(stats)
    listing = ["sizes", *(f"{path}\0{stamp_of(stats[path])}" for path in paths)]
    sizes = read_verdicts(lambda index: _size(paths[index - 1]) if index else None, listing, name)[1:]
    return {path: size and (size[0], size[1]) for path, size in zip(paths, sizes, strict=True)}


def _size(path: str) -> Size | None:
    try:
        with Image.open(path) as image:
            size = image.size
        if not _ends_as_jpeg(path):
            read_image(path)
    except (*DAMAGED, UnidentifiedImageError, UserError):
        return None
    return size


def _ends_as_jpeg(path: str) -> bool:
    """Return whether a file is a JPEG with its end marker, absent from coded data and from truncated files."""
    with Path(path).open("rb") as file:
        start = file.read(len(JPEG))
        file.seek(-len(JPEG_END), os.SEEK_END)
        return start == JPEG and file.read() == JPEG_END
