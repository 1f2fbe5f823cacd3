"""Checks of files in COCO's format, and that their images exist, are whole and of the stated size; `--subset N`.

Errors name the file, the entry and how to fix it. Shapes: I images.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError, shortened
from transfer.data.coco.split import WORDS, CocoSplit
from transfer.data.loading.read_image import LEAVE_OUT, is_image, open_image, orientation, read_image
from transfer.data.spec import DatasetSpec
from transfer.data.splits.integrity import content_digests, orientation_notes, raise_if_damaged, read_once

HINT = "extract the archive again, or fix the program that wrote the file"
Test = Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    return type(value) is int


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # JSON as Python writes it has NaN


def is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(is_number, value))


def is_segmentation(value: Any) -> bool:
    """Return whether a value is polygons of any length, a run-length encoding (see `rle_fault`), None or []."""
    if isinstance(value, dict):
        return isinstance(value.get("counts"), list | str) and isinstance(value.get("size"), list)
    return value is None or (isinstance(value, list) and all(map(_is_polygon, value)))


def _is_polygon(value: Any) -> bool:
    return isinstance(value, list) and (len(value) < 6 or len(value) % 2 == 0) and all(map(is_number, value))


TEXT: tuple[Test, str] = (lambda value: isinstance(value, str) and bool(value), "text")
WHOLE: tuple[Test, str] = (is_whole, "a whole number")
SIZE: tuple[Test, str] = (lambda value: is_whole(value) and value > 0, "a whole number above 0")
FLAG: tuple[Test, str] = (lambda value: type(value) in (int, bool) and value in (0, 1), "0 or 1")
FIELDS: dict[str, dict[str, tuple[Test, str]]] = {
    "images": {"id": WHOLE, "file_name": TEXT, "width": SIZE, "height": SIZE},
    "categories": {"id": WHOLE, "name": TEXT},
    "annotations": {
        **dict.fromkeys(("id", "image_id", "category_id"), WHOLE),
        "bbox": (is_box, "a list of four numbers: x, y, width, height"),
        "area": (lambda value: is_number(value) or value != value, "a number"),
        "iscrowd": FLAG,
        "ignore": FLAG,
        "segmentation": (is_segmentation, "a list of polygons [x, y, x, y, ...] or a run-length encoding"),
    },
}
OPTIONAL = {"iscrowd": 0, "ignore": 0, "segmentation": None, "area": math.nan}
"""Fields that datasets other than COCO leave out, or set to null, with their defaults."""
TEXTS = ("file_name", "name", "segmentation")


def as_number(value: Any) -> Any:
    """Return the number that a text says, 96 for 96.0, and those in a list; anything else as it is."""
    if isinstance(value, list):
        return list(map(as_number, value))
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value) if value.isdecimal() else float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_entries(file: Path, key: str, entries: list[Any]) -> None:
    """Check the entries of the list `key`; numbers written as text, and whole numbers with a point, are converted.

    Args:
        file: its name, for messages.
        key: the list.
        entries: its entries.

    Raises:
        UserError: one is not in COCO's format.
    """
    for number, entry in enumerate(entries):
        given = entry if isinstance(entry, dict) else {}
        for name, (fits, requirement) in FIELDS[key].items():
            value = OPTIONAL.get(name) if given.get(name) is None else given[name]
            if value is not None:
                polygons = name == "segmentation" and isinstance(value, list) and not fits(value)
                value = given[name] = as_number(value) if polygons or name not in TEXTS else value
            if not fits(value):
                fault = f"is {given[name]!r:.80}" if name in given else "is missing"
                raise UserError(
                    f"{file}: entry {number} of `{key}` (id {given.get('id')!r:.20}): `{name}` {fault}; it must be "
                    f"{requirement}; {HINT}"
                )


def check_unique(file: Path, key: str, values: Sequence[Any], name: str) -> None:
    """Check that no two entries of the list `key` have the same value of `name`. Raises UserError."""
    if len(set(values)) < len(values):
        twice = sorted(value for value, count in Counter(values).items() if count > 1)
        raise UserError(f"{file}: `{key}` has {len(twice)} duplicate values of `{name}`: {shortened(twice)}; "
                        "make them unique")  # fmt: skip


def rle_fault(rle: dict[str, Any], height: int, width: int) -> str | None:
    """Return the fault of a run-length encoding of a mask of `height` x `width` pixels, or None."""
    if rle["size"] != [height, width]:
        return f"its `size` is {rle['size']!r:.80}, but the image's is {[height, width]}"
    counts = rle["counts"] if isinstance(rle["counts"], list) else _uncompressed(rle["counts"])
    total = sum(counts)
    if total == height * width and min(counts) >= 0:
        return None
    return f"its `counts` add up to {total}, but there are {height * width} pixels"


def _uncompressed(text: str) -> list[int]:
    """Decode COCO's run lengths: five bits a character; from the fourth on, differences to the last but one."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    return counts


Header = list[int]
Splits = dict[str, CocoSplit]
JPEG, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
SHOWN = 5


def check_images(spec: DatasetSpec, splits: Splits, *, skip: bool) -> tuple[Splits, int, list[str]]:
    """Check the images; return the splits without unreadable ones, the number of these, and notes.

    Raises:
        UserError: an image cannot be read, unless `skip`, or its size is not the stated one.
    """
    headers = {name: read_headers(split, name=spec.name) for name, split in splits.items()}
    found = [header for split_headers in headers.values() for header in split_headers]
    bad = [header for header in found if isinstance(header, str)]
    raise_if_damaged(bad, len(found), spec.name, skip=skip)
    splits = {
        name: split.select(np.array([not isinstance(header, str) for header in headers[name]])) if bad else split
        for name, split in splits.items()
    }
    for name, split in splits.items():
        _check_sizes(split, [header for header in headers[name] if not isinstance(header, str)])
    read = "opened upright" if any(split.upright for split in splits.values()) else "read as stored (`exif: ignore`)"
    return splits, len(bad), orientation_notes([header[2] for header in found if not isinstance(header, str)], read)


def _check_sizes(split: CocoSplit, headers: list[Header]) -> None:
    """Raise UserError for images of another size than their annotations state."""

    def sizes(upright: bool) -> list[tuple[int, int]]:
        return [(y, x) if upright and orientation > 4 else (x, y) for x, y, orientation in headers]

    stated = [(image.width, image.height) for image in split.images]
    wrong = [
        f"\n  {path}: {size[0]} x {size[1]}, stated {want[0]} x {want[1]}"
        for path, size, want in zip(split.paths(), sizes(split.upright), stated, strict=True)
        if size != want
    ]
    if not wrong:
        return
    cure = "restore the original images: the boxes refer to their pixels"
    if sizes(not split.upright) == stated:
        rule = "as stored: `exif: ignore`" if split.upright else "turned by their EXIF orientation: `exif: apply`"
        cure = f"it describes the images {rule} in the dataset's YAML file reads them so"
    raise UserError(
        f"{split.file}: {len(wrong)} images do not have the size (width x height) that it states:"
        f"{''.join(wrong[:SHOWN])}\n{cure}"
    )


def unlisted(root: Path, splits: Splits) -> list[str]:
    """Return a note on images below the folders of a set's images that no file of annotations lists."""
    listed = {os.path.normpath(path) for split in splits.values() for path in split.paths()}
    names = {(split.folder, os.path.dirname(image.file_name)) for split in splits.values() for image in split.images}  # noqa: PTH120
    tops = [os.path.normpath(folder / below) for folder, below in names if not below.startswith("..")]
    shown = [(folder, name) for top in tops for folder, _, names in os.walk(top) for name in names if name[0] != "."]
    images = {f"{folder}/{name}" for folder, name in shown if is_image(name)}
    found = sorted(os.path.relpath(path, root) for path in images - listed)
    return [f"{len(found)} images are not listed in any annotation file: {shortened(found, 3)}"] * bool(found)


def choose_images(splits: Splits, n: int, *, skip: bool) -> Splits:
    """Return N images of each split: first those with objects, ranked by content, then the others."""
    have = {name: len(split.images) for name, split in splits.items()}
    if n < 1 or n > min(have.values()):
        listed = " and ".join(f"{count} {WORDS[name]}" for name, count in have.items())
        raise UserError(f"subset {n}: the dataset has {listed} images")
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


def read_headers(split: CocoSplit, *, name: str) -> list[Header | str]:
    """Return width and height in pixels (of TIFF: as turned) and `orientation` of every image, or why there are none.

    A JPEG with its end marker is not decoded; every other file is, so that truncated ones are found. Each state of a
    dataset is read once, see `read_once`.

    Args:
        split: the images.
        name: name of the dataset, for messages.
    """
    listing = ["size and turn, or fault", *split.files().stamps(range(len(split.images)))]
    return read_once(lambda index: _header(split.path(index)), listing, f"checking {name}")


def _header(path: str) -> Header | str:
    try:
        with open_image(path) as file:
            if _ends_as_jpeg(path):
                return [*file.size, orientation(file)]
        image = read_image(path)
    except UserError as error:
        return str(error).removesuffix(LEAVE_OUT)
    return [*image.size, orientation(image)]


def _ends_as_jpeg(path: str) -> bool:
    """Return whether a file is a JPEG with its end marker, absent from coded data and from truncated files."""
    with Path(path).open("rb") as file:
        start = file.read(len(JPEG))
        file.seek(-len(JPEG_END), os.SEEK_END)
        return start == JPEG and file.read() == JPEG_END
