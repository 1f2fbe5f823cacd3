"""Checks of what was read from a YAML file; `where` names the place in the file for error messages."""

from typing import Any

from transfer.core.errors import UsageError, did_you_mean


def check_keys(content: dict[str, Any], known: tuple[str, ...], where: str, *, needed: tuple[str, ...] = ()) -> None:
    """Raise UsageError for an unknown key, or if a needed one is missing."""
    for key in content:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}{did_you_mean(key, known)} (known: {', '.join(known)})")
    if missing := [key for key in needed if key not in content]:
        raise UsageError(f"{where}: `{missing[0]}` is missing")


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a value that is a mapping with text keys. Raises UsageError for any other."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{where}: expected `key: value` pairs with text keys, not {value!r}")
    return value


def as_items(value: Any, where: str) -> list[Any]:
    """Return a value that is a list of at least one item. Raises UsageError for any other."""
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where}: expected a list of one or more, not {value!r}")
    return value
