"""Values that a run has of a published row's options. Imports no torch."""

import math
from collections.abc import Mapping
from typing import Any

from backbones.archs import VOLOS
from backbones.spec import FIELDS
from transfer.published.rows import used_values
from transfer.records.labels import value_label
from transfer.records.protocol import canonical_stem
from transfer.records.record import Record

Reading = tuple[str, ...]
"""What a run has of the options of a row that can be read in several ways: "lr 0.002, printed 0.001"."""


def reading_of(record: Record, row_options: Mapping[str, Any]) -> Reading | None:
    """Return the reading of a row's options that a run has; None if it has other values.

    Args:
        row_options: options that the row names.
    """
    reading = []
    for name, option in row_options.items():
        same = [value for value in used_values(option) if _has(record, name, value)]
        if not same:
            return None
        if isinstance(option, dict):
            reading.append(f"{name} {value_label(same[0])}, printed {value_label(option['printed'])}")
    return tuple(reading)


def _has(record: Record, name: str, value: Any) -> bool:
    if name == "weights":
        return bool(record.weights_id == value)
    if name == "stem":
        return same_stem(record, str(value))
    part = name in FIELDS and name != "drop_path"
    return equal(record.backbone.get(name) if part else record.options.get(name), value)


def same_stem(record: Record, text: str) -> bool:
    """Return whether a run's backbone has a stem, under this or another name."""
    stem, patch = record.backbone.get("stem"), record.backbone.get("patch")
    if not stem or not patch or "stem" in (record.backbone.get("files") or {}):
        return False
    return canonical_stem(stem, patch) == canonical_stem(text, patch)


def equal(left: Any, right: Any) -> bool:
    """Return whether two values of an option are equal, numbers up to a relative difference of 1e-9."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right)]
    return math.isclose(left, right, rel_tol=1e-9) if all(numbers) else bool(left == right)


def is_volo(record: Record) -> bool:
    """Return whether a run's backbone is a VOLO."""
    return (record.backbone.get("arch") or record.options.get("arch")) in VOLOS
