"""Names of variants in sentences and figures."""

import re

from transfer.records.labels import value_label


def arm_name(text: str) -> str:
    """Return a selector as a name: "stem conv, lr 0.1" for "stem=conv,lr=0.1"; a user's part without its folder."""
    return ", ".join(
        f"{name} {value_label(value)}".strip() for name, _, value in map(_parted, re.split(r",(?=[\w.]+=)", text))
    )


def _parted(text: str) -> tuple[str, str, str]:
    name, equal, value = text.partition("=")
    return (name, equal, value) if equal else (value_label(text), "", "")
