"""Reads the variants that a command compares, combinations of a stem, an attention and an FFN. Imports no torch."""

import re
from collections.abc import Mapping, Sequence

from backbones.archs import parse_field
from transfer.core.errors import UsageError, did_you_mean, errors_together, kept
from transfer.core.user_code import builtin_names, is_in_file, is_user_part, locate

PARTS = ("stem", "attention", "ffn")


def read_variants(asked: Mapping[str, str], against: Sequence[str]) -> list[dict[str, str]]:
    """Return the parts that each variant names: first the one that is asked for, then the ones to compare it with.

    Args:
        asked: the value of each part of the first variant.
        against: the others, as `conv` or `stem=conv,attention=relu`; if there are none, the backbone's own parts.

    Raises:
        UsageError: lists every unknown part, with the nearest names.
    """
    variants = [dict(asked)]
    with errors_together():
        for text in against or [""]:
            with kept():
                variants.append(_parts(text, tuple(asked)))
        for part, value in [item for variant in variants for item in variant.items()]:
            with kept():
                parse_field(part, locate(value) if is_in_file(value) else value)  # a user's file is not run
    return variants


def selector(parts: Mapping[str, str]) -> str:
    """Return parts as reports select them: `stem=conv,attention=relu`."""
    return ",".join(f"{part}={value}" for part, value in parts.items())


def _parts(text: str, asked: Sequence[str]) -> dict[str, str]:
    """Return the parts that a text of `--against` names; a bare value is one of the parts asked for."""
    if not text or re.match(f"({'|'.join(PARTS)})=", text):
        named = re.split(f",(?=(?:{'|'.join(PARTS)})=)", text) if text else []
        return dict(item.split("=", 1) for item in named)
    fitting = [part for part in asked if len(asked) == 1 or text in builtin_names(part)]
    if len(fitting) == 1:
        return {fitting[0]: text}
    near = "" if is_user_part(text) else did_you_mean(text, [name for part in asked for name in builtin_names(part)])
    choices = " or ".join(f"{part}={text}" for part in asked)
    raise UsageError(f"--against {text}: must be one of the {' or '.join(asked)} names, or {choices}{near}")
