"""Values of options as people write them, and short names in letters. Imports neither torch nor pandas."""

from collections.abc import Iterable, Mapping
from typing import Any

from transfer.records.protocol import NO_EFFECT, NOT_RECORDED


def value_label(value: Any) -> str:
    """An option's value as one would say it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return " ".join(map(value_label, value)) or "none"
    return str(value)


def content_label(content: Mapping[str, Any], names: Iterable[str]) -> str:
    """Some fields with their values, where they have an effect: "lr 0.05, epochs 20"."""
    values = {name: content.get(name, NOT_RECORDED) for name in names}
    return ", ".join(f"{name} {value_label(value)}" for name, value in values.items() if value != NO_EFFECT)


def letter(number: int) -> str:
    """a, b, ... z, aa, ab, ... for 0, 1, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
