"""Checks of files in COCO's format; errors name the file, the entry and how to fix it."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backbones.errors import UserError, shortened

Test = Callable[[Any], bool]
LARGEST = 2.0**53
"""Smallest whole number from which floating point is no longer exact."""
HINT = "extract the archive again, or write the file anew"


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
    try:  # 50 million coordinates in COCO: a call of `is_number` for each takes half a minute
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


def parse_coco(file: Path, content: bytes) -> dict[str, list[dict[str, Any]]]:
    """Parse and check the images, categories and annotations of a file in COCO's format.

    Raises:
        UserError: the file is not JSON or not in COCO's format, or has an id twice.
    """
    try:
        tables = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}); {HINT}") from None
    for key in FIELDS:
        if not isinstance(tables, dict) or not isinstance(tables.get(key), list):
            hint = "; files without it (image_info_*.json) serve neither for training nor for scoring"
            raise UserError(
                f"{file}: not in COCO's format: there is no list `{key}`{hint if key == 'annotations' else ''}; {HINT}"
            )
        _check_entries(file, key, tables[key])
    _check_unique(file, "images", [image["file_name"] for image in tables["images"]], "file_name")
    return {key: tables[key] for key in FIELDS}


def _check_entries(file: Path, key: str, entries: list[Any]) -> None:
    tests = FIELDS[key].items()
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise UserError(f"{file}: entry {number} of `{key}` is {entry!r:.80}, not in COCO's format; {HINT}")
        for name, (fits, requirement) in tests:
            if not fits(entry.get(name, OPTIONAL.get(name))):
                value = f"is {entry[name]!r:.80}" if name in entry else "is missing"
                raise UserError(
                    f"{file}: entry {number} of `{key}` (id {entry.get('id')!r:.20}): `{name}` {value}; it must be "
                    f"{requirement}; {HINT}"
                )
    _check_unique(file, key, [entry["id"] for entry in entries], "id")


def _check_unique(file: Path, key: str, values: list[Any], name: str) -> None:
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
