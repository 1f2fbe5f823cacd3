"""Labels of options' values and short names in letters, for readers of tables. Imports neither torch nor pandas."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from transfer.records.protocol import NO_EFFECT, NOT_RECORDED

_BY_CONTENT = re.compile("sha256:[0-9a-f]{64}:")
"""How a record names a custom part: by the content of its file, before its class."""

NAMED_BY_VALUE = ("stem", "attention", "ffn", "name")
"""Parts of a backbone that readers know by their value alone."""
MEANINGS = {"resize none": "resize none (size / 0.875)"}
"""Texts of options whose value does not say what it does."""


def value_label(value: Any) -> str:
    """Return an option's value for a reader: "none", "yes", "0.05", "1 2 3"; a custom part by its class."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return " ".join(map(value_label, value)) or "none"
    text = str(value)
    return text.rpartition(":")[2] if ".py:" in text or _BY_CONTENT.match(text) else text


def content_label(content: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return some fields with their values as text, those without effect left out: "lr 0.05, epochs 20"."""
    values = {name: content.get(name, NOT_RECORDED) for name in names}
    texts = (f"{name} {value_label(value)}" for name, value in values.items() if value != NO_EFFECT)
    return ", ".join(MEANINGS.get(text, text) for text in texts)


def parts_label(parts: Mapping[str, Any], between: str = ", ") -> str:
    """Return the parts of a backbone as text: "LapStem, relu, qk_norm, depth 4"."""
    texts = []
    for name, value in parts.items():
        label = value_label(value)
        if isinstance(value, bool):
            texts.append(name if value else f"no {name}")
        elif name in NAMED_BY_VALUE and value != NOT_RECORDED:
            texts.append(label.rpartition(":")[2])
        elif value != NO_EFFECT:
            texts.append(f"{name} {label}")
    return between.join(texts)


def letter(number: int) -> str:
    """Return a, b, ... z, aa, ab, ... for 0, 1, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
