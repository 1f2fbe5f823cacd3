"""Checks of files in COCO's format; errors name the file, the entry and how to fix it."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from backbones.errors import UserError, shortened
from tasks.data.coco_json import HINT

Test = Callable[[Any], bool]
LARGEST = 2.0**53
"""Smallest whole number from which floating point is no longer exact."""


def is_whole(value: Any) -> bool:
    return type(value) is int and -LARGEST < value < LARGEST


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST < value < LARGEST  # no nan, which JSON does not forbid here


def is_size(value: Any) -> bool:
    return is_whole(value) and value > 0


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(is_number, value))


def is_flag(value: Any) -> bool:
    return type(value) in (int, bool) and value in (0, 1)


def is_segmentation(value: Any) -> bool:
    """Return whether a value is polygons of any length, a run-length encoding (see `rle_fault`), None or []."""
    if isinstance(value, dict):
        return isinstance(value.get("counts"), list | str) and isinstance(value.get("size"), list)
    return value is None or (isinstance(value, list) and all(map(_is_polygon, value)))


def _is_polygon(value: Any) -> bool:
    if not isinstance(value, list) or not set(map(type, value)) <= {int, float}:
        return False
    try:
        return (len(value) < 6 or len(value) % 2 == 0) and all(map(math.isfinite, value))
    except OverflowError:  # a whole number beyond floating point
        return False


FIELDS: dict[str, dict[str, tuple[Test, str]]] = {
    "images": {
        "id": (is_whole, "a whole number"),
        "file_name": (is_text, "text without control characters"),
        "width": (is_size, "a whole number above 0"),
        "height": (is_size, "a whole number above 0"),
    },
    "categories": {"id": (is_whole, "a whole number"), "name": (is_text, "text without control characters")},
    "annotations": {
        "id": (is_whole, "a whole number"),
        "image_id": (is_whole, "a whole number"),
        "category_id": (is_whole, "a whole number"),
        "bbox": (is_box, "a list of four numbers: x, y, width, height"),
        "area": (is_number, "a number"),
        "iscrowd": (is_flag, "0 or 1"),
        "segmentation": (is_segmentation, "a list of polygons [x, y, x, y, ...] or a run-length encoding"),
    },
}
OPTIONAL = {"iscrowd": 0, "segmentation": None}
"""Fields that data sets other than COCO leave out, with their defaults."""


def check_entries(file: Path, key: str, first: int, entries: list[Any], *, fast: bool = False) -> None:
    """Check some entries of the list `key`.

    Args:
        file: its name, for messages.
        key: the list.
        first: number of the first of the entries.
        entries: some that follow each other.
        fast: leave open whether the coordinates of polygons are finite.

    Raises:
        UserError: one is not in COCO's format.
    """
    if not (fast and key == "annotations" and _are_sound_annotations(entries)):
        for number, entry in enumerate(entries, first):
            check_entry(file, key, number, entry)


def _are_sound_annotations(entries: list[Any]) -> bool:
    """Return whether all annotations pass, but for infinite coordinates; False leaves it open.

    A call of every test for every annotation takes five times as long.
    """
    try:
        columns = {name: [entry.get(name, OPTIONAL.get(name)) for entry in entries] for name in FIELDS["annotations"]}
        polygons = list(chain.from_iterable([value for value in columns["segmentation"] if type(value) is list]))
        return (
            all(set(map(type, columns[name])) <= {int} for name in ("id", "image_id", "category_id", "iscrowd"))
            and set(columns["iscrowd"]) <= {0, 1}
            and all(_are_below_largest(columns[name]) for name in ("id", "image_id", "category_id", "area"))
            and set(map(type, columns["bbox"])) <= {list}
            and set(map(len, columns["bbox"])) <= {4}
            and _are_below_largest(list(chain.from_iterable(columns["bbox"])))
            and all(is_segmentation(value) for value in columns["segmentation"] if type(value) is not list)
            and set(map(type, polygons)) <= {list}
            and all(len(polygon) % 2 == 0 for polygon in polygons)
            and set(map(type, chain.from_iterable(polygons))) <= {int, float}
        )
    except (AttributeError, TypeError, OverflowError):
        return False


def _are_below_largest(values: list[Any]) -> bool:
    """Return whether all are numbers that `is_number` takes."""
    if not set(map(type, values)) <= {int, float}:
        return False
    return bool((np.abs(np.array(values, dtype=np.float64)) < LARGEST).all())


def check_entry(file: Path, key: str, number: int, entry: Any) -> None:
    """Check one entry of the list `key`. Raises UserError."""
    if not isinstance(entry, dict):
        raise UserError(f"{file}: entry {number} of `{key}` is {entry!r:.80}, not in COCO's format; {HINT}")
    for name, (fits, requirement) in FIELDS[key].items():
        if not fits(entry.get(name, OPTIONAL.get(name))):
            value = f"is {entry[name]!r:.80}" if name in entry else "is missing"
            raise UserError(
                f"{file}: entry {number} of `{key}` (id {entry.get('id')!r:.20}): `{name}` {value}; it must be "
                f"{requirement}; {HINT}"
            )


def check_unique(file: Path, key: str, values: Sequence[Any], name: str) -> None:
    """Check that no two entries of the list `key` have the same value of `name`. Raises UserError."""
    if len(set(values)) < len(values):
        twice = sorted(value for value, count in Counter(values).items() if count > 1)
        raise UserError(f"{file}: `{key}` has {len(twice)} values of `{name}` more than once: {shortened(twice)}; "
                        "every one needs its own: write the file anew")  # fmt: skip


def rle_fault(rle: dict[str, Any], height: int, width: int) -> str | None:
    """Return the fault of a run-length encoding of a mask of `height` x `width` pixels, or None."""
    if rle["size"] != [height, width]:
        return f"its `size` is {rle['size']!r:.80}, but the image's is {[height, width]}"
    counts = rle["counts"] if isinstance(rle["counts"], list) else _uncompressed(rle["counts"])
    if counts is None or not all(is_whole(count) and count >= 0 for count in counts):
        return "its `counts` are neither numbers from 0 nor a string that encodes such"
    total = sum(counts)
    return None if total == height * width else f"its `counts` add up to {total}, but there are {height * width} pixels"


def _uncompressed(text: str) -> list[int] | None:
    """Decode COCO's run lengths: five bits a character; from the fourth on, differences to the last but one."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    return None if shift else counts
