"""The parts of a file of published numbers, checked one by one; `where` names the place in errors."""

from typing import Any

from backbones.data.spec import resolve_dataset
from backbones.errors import UsageError, did_you_mean


def is_number(value: Any) -> bool:
    """Whether it is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def printed_text(value: Any, where: str) -> str:
    """A number or a text, as it was printed."""
    return str(value) if is_number(value) else text_of(value, f"{where}: printed")


def check_keys(content: dict[str, Any], known: tuple[str, ...], where: str, *, needed: tuple[str, ...]) -> None:
    """Raises UsageError for an unknown or a missing key."""
    for key in content:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}{did_you_mean(str(key), known)} (known: {', '.join(known)})")
    if missing := [key for key in needed if key not in content]:
        raise UsageError(f"{where}: `{missing[0]}` is missing")


def mapping(value: Any, where: str) -> dict[str, Any]:
    """The value, where it is a mapping with text keys. Raises UsageError."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{where}: expected `key: value` pairs with text keys, not {value!r}")
    return value


def as_items(value: Any, where: str) -> list[Any]:
    """The value, where it is a list of one or more. Raises UsageError."""
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where}: expected a list of one or more, not {value!r}")
    return value


def text_of(value: Any, where: str) -> str:
    """The value, where it is text. Raises UsageError."""
    if not isinstance(value, str):
        raise UsageError(f"{where}: expected text, not {value!r}")
    return value


def texts_of(value: Any, where: str) -> tuple[str, ...]:
    """The value, where it is a list of texts. Raises UsageError."""
    if not isinstance(value, list):
        raise UsageError(f"{where}: expected a list of texts, not {value!r}")
    return tuple(text_of(item, where) for item in value)


def dataset_of(value: Any, where: str) -> str:
    """The name of a data set that is known. Raises UsageError."""
    try:
        resolve_dataset(text_of(value, where))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return str(value)
