"""Checks of the keys of a YAML file; `where` names the place in the file for error messages."""

from typing import Any

from backbones.errors import UsageError, did_you_mean


def check_keys(content: dict[str, Any], known: tuple[str, ...], where: str, *, needed: tuple[str, ...] = ()) -> None:
    """Raise UsageError for an unknown key, or if a needed one is missing."""
    for key in content:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}{did_you_mean(key, known)} (known: {', '.join(known)})")
    if missing := [key for key in needed if key not in content]:
        raise UsageError(f"{where}: `{missing[0]}` is missing")
