"""Checks of files in COCO's format; errors name the file, the entry and how to fix it."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transfer.core.errors import UserError, shortened

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
