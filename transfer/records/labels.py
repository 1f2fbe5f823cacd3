"""Labels of options' values and short names in letters, for readers of tables. Imports neither torch nor pandas."""

from collections.abc import Iterable, Mapping
from typing import Any

from transfer.records.protocol import NO_EFFECT, NOT_RECORDED


def value_label(value: Any) -> str:
    """Return an option's value for a reader: "none", "yes", "0.05", "1 2 3"; a user's part without its folder."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return " ".join(map(value_label, value)) or "none"
    if isinstance(value, str) and ".py:" in value:
        return value.replace("\\", "/").rpartition("/")[2]
    return str(value)


def content_label(content: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return some fields with their values as text, those without effect left out: "lr 0.05, epochs 20"."""
    values = {name: content.get(name, NOT_RECORDED) for name in names}
    return ", ".join(f"{name} {value_label(value)}" for name, value in values.items() if value != NO_EFFECT)


def letter(number: int) -> str:
    """Return a, b, ... z, aa, ab, ... for 0, 1, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
