"""Notes on the fields of option dataclasses: everything that the suite knows of an option besides its meaning.

They are annotations, as `workers: Annotated[int | None, Range(0), Execution(), Common()] = None`. Help, rejected flags,
run keys, protocols, keywords of Python, paths in YAML files and schedules of shorter trainings derive from them; see
`noted`. Imports no torch.
"""

import dataclasses
import math
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from transfer.core.errors import UsageError, did_you_mean, reject

T = TypeVar("T")
Note = TypeVar("Note")


class Common:
    """A field that `--help` shows; all others are shown by `--help-all` alone."""


@dataclass(frozen=True)
class Execution:
    """A field of how and where a run is executed: no part of its key, nor of its protocol."""

    repeated: bool = True
    """Whether the options.yaml of a run has it."""


class Files:
    """A field whose values may be files; those in a YAML file may lie beside it."""


@dataclass(frozen=True)
class CommandLine:
    """A field without a use in Python, and what Python has instead."""

    instead: str


class Other:
    """Any value but these, in the place of a value of `Needs`."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def several(values: Any) -> bool:
    """Return whether there are two or more, for a value of `Needs`."""
    return len(as_list(values)) > 1


class Needs:
    """The condition under which a field acts: a field of the same command or backbone, and its value or values.

    True and False stand for any value that is given, and for none, 0 and empty ones.

    Args:
        also: a further condition.
        otherwise: one that suffices, too.
    """

    def __init__(self, *, also: "Needs | None" = None, otherwise: "Needs | None" = None, **condition: Any) -> None:
        ((self.option, self.wanted),) = condition.items()
        self.also, self.otherwise = also, otherwise

    def holds(self, value: Any) -> bool:
        """Return whether the other field's value lets the field act."""
        if isinstance(self.wanted, Other):
            return value not in self.wanted.values
        if isinstance(self.wanted, bool):
            return bool(value) == self.wanted
        if self.wanted is several:
            return several(value)
        return value in self.wanted if isinstance(self.wanted, tuple) else bool(value == self.wanted)


@dataclass(frozen=True)
class Added:
    """The value at which a field that was added later is left out of the identity, so that older runs keep theirs; the
    field's default, where recipes do not have it.
    """

    value: Any

    @property
    def recorded(self) -> Any:
        """The value as `plain` returns it."""
        return list(self.value) if isinstance(self.value, tuple) else self.value


@dataclass(frozen=True)
class Span:
    """A field that counts epochs from the start or the end of the training; see `transfer.cli.recipe`."""

    whole: bool = False
    """Whether it counts whole epochs."""


@dataclass(frozen=True)
class Range:
    """The smallest and largest value of a field, or of each of its values; None is not checked. See `Checked`."""

    low: float
    high: float = math.inf
    rising: bool = False
    """Whether there are two values, above 0, and the smaller is first."""


class Checked:
    """Base of option dataclasses, which checks each field's `Range`; a `__post_init__` of their own calls this one."""

    def __post_init__(self) -> None:
        for name, note in noted(type(self), Range).items():
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            for number in value if isinstance(value, tuple) else (value,):
                if number is not None and not note.low <= number <= note.high:
                    limits = f"between {note.low:g} and {note.high:g}"
                    limits = f"at least {note.low:g}" if note.high == math.inf else limits
                    reject(f"{flag} {value}: must be {limits}")
            if note.rising and not 0 < value[0] <= value[1]:
                reject(f"{flag} {value[0]} {value[1]}: must be positive, the smaller value first")


@cache
def _notes(kind: Any) -> list[tuple[str, Any]]:
    notes = list[tuple[str, Any]]()
    for base in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        for name, hint in typing.get_type_hints(base, include_extras=True).items():
            notes += [(name, note) for note in getattr(hint, "__metadata__", ())]
    return notes


def noted(kind: Any, note: type[Note]) -> dict[str, Note]:
    """Return the fields of a dataclass that have a kind of note, each with its note. One that a derived class declares
    anew keeps its notes.
    """
    return {name: value for name, value in _notes(kind) if isinstance(value, note)}


def idle_options(needs: Mapping[str, Needs], values: Mapping[str, Any]) -> dict[str, Needs]:
    """Return the options that do not act beside these values, each with the condition that fails.

    An option does not act either if the one that it needs does not. Of a value that is missing nothing is concluded.
    """

    def failing(condition: Needs | None) -> Needs | None:
        if condition is None or condition.option not in values:
            return None
        other_idle = failing(needs.get(condition.option))
        failed = other_idle if condition.holds(values[condition.option]) else condition
        if failed is None or condition.otherwise is None:
            return failed or failing(condition.also)
        other_failed = failing(condition.otherwise)
        return other_failed and (other_failed if other_idle else failed)

    return {name: condition for name in needs if (condition := failing(needs[name]))}


def with_value(name: str, value: Any) -> str:
    """Return an option as a user gives it: "with --optimizer adamw", "without --rerank"."""
    flag = f"--{name.replace('_', '-')}"
    if value in ((), []):
        return f"with an empty {flag}"
    if value is None or value is False or value == "":
        return f"without {flag}"
    values = () if value is True else value if isinstance(value, list | tuple) else (value,)
    return " ".join([f"with {flag}", *(f"{item:g}" if isinstance(item, float) else str(item) for item in values)])


def check_pad(pad: int, *size: int) -> None:
    """Raise UsageError for a padding from which a crop of `size` pixels may show nothing of the image."""
    if pad >= min(size):
        sides = " ".join(map(str, size))
        reject(f"--pad {pad}: must be below each side of --size {sides}, or a crop may miss the image")


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


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, None as an empty list, and any other value as a list of one."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def differences(theirs: dict[str, Any], ours: dict[str, Any], ignored: Collection[str] = ()) -> list[str]:
    """Return the options that both sides give and that differ, each as `name VALUE there, VALUE here`."""
    names = sorted(theirs.keys() & ours.keys() - set(ignored))
    return [f"{name} {theirs[name]} there, {ours[name]} here" for name in names if theirs[name] != ours[name]]


def plain(options: Any) -> dict[str, Any]:
    """Return the fields of an options dataclass as values that JSON and YAML can hold, nested groups flattened."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            values |= plain(value)
        elif isinstance(value, Path):
            values[field.name] = str(value)
        elif isinstance(value, tuple | list):
            values[field.name] = [str(item) if isinstance(item, Path) else item for item in value]
        else:
            values[field.name] = value
    return values


def from_plain(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return the options of a class from values of a record, as `plain` writes them; those that it lacks have their
    defaults.
    """
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    fields = {name: value for name, value in values.items() if name in names}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
