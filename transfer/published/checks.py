"""Checks of values that were read from a YAML file; `where` names the place in the file for error messages."""

from typing import Any

from backbones.data.spec import resolve_dataset
from backbones.errors import UsageError, did_you_mean


def is_number(value: Any) -> bool:
    """Return whether a value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def printed_text(value: Any, where: str) -> str:
    """Return a printed number as text. Raises UsageError unless the value is a number or text."""
    return str(value) if is_number(value) else text_of(value, f"{where}: printed")


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


def text_of(value: Any, where: str) -> str:
    """Return a value that is text. Raises UsageError for any other."""
    if not isinstance(value, str):
        raise UsageError(f"{where}: expected text, not {value!r}")
    return value


def texts_of(value: Any, where: str) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises UsageError for any other value."""
    if not isinstance(value, list):
        raise UsageError(f"{where}: expected a list of texts, not {value!r}")
    return tuple(text_of(item, where) for item in value)


def dataset_of(value: Any, where: str) -> str:
    """Return a value that is the name of a known data set. Raises UsageError for any other."""
    try:
        resolve_dataset(text_of(value, where))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return str(value)
