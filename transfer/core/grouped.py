"""Items, or values, with an equal key, together; values without repeats."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def repeated(values: Iterable[K]) -> list[K]:
    """Return each value that occurs more than once, in order of appearance."""
    return [value for value, number in Counter(values).items() if number > 1]


def grouped_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items of each key; keys and the items of each are in order of appearance."""
    return values_by_key((key(item), item) for item in items)


def values_by_key(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values of each key; keys and the values of each are in order of appearance."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def without_repeats(values: Iterable[T]) -> list[T]:
    """Return the values, also such as cannot be hashed, without repeats, in order of appearance."""
    return list({repr(value): value for value in values}.values())
