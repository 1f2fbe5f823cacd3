"""Names of variants in sentences, headings and figures."""

import re

from transfer.comparison.compare_arms import Comparison
from transfer.records.labels import value_label

PARTS = ("stem", "attention", "ffn", "backbone")
"""Fields whose value alone is the name."""


def compared_names(comparison: Comparison) -> list[str]:
    """Return the names of the variants of a comparison, by the fields in which their selectors differ."""
    return names_of([variant.text for variant in comparison.variants])


def names_of(selectors: list[str]) -> list[str]:
    """Return names of selectors: "conv" and "LapStem + lr 0.1", without equal fields, folders and hashes.

    Equally named parts of different files get the first digits of their files' digests.
    """
    parsed = [_fields(text) for text in selectors]
    differing = [
        {field: value for field, value in fields.items() if any(other.get(field) != value for other in parsed)}
        for fields in parsed
    ]
    names = [_joined(fields or whole) for fields, whole in zip(differing, parsed, strict=True)]
    if len({*names}) == len(names):
        return names
    digests = [re.findall("sha256:([0-9a-f]{8})", text) for text in selectors]
    return [f"{name} ({' '.join(found)})" if found else name for name, found in zip(names, digests, strict=True)]


def shared_name(comparison: Comparison) -> str:
    """Return the name of what the selectors of all variants of a comparison have in common."""
    first, *others = (_fields(variant.text) for variant in comparison.variants)
    shared = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    return _joined(shared)


def _fields(selector: str) -> dict[str, str]:
    return dict(_parted(part) for part in re.split(r",(?=[\w.]+=)", selector))


def _joined(fields: dict[str, str]) -> str:
    return " + ".join(f"{'' if name in PARTS else name} {value_label(value)}".strip() for name, value in fields.items())


def _parted(text: str) -> tuple[str, str]:
    name, equal, value = text.partition("=")
    return (name, value) if equal else ("backbone", text)
