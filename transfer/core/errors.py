"""Errors that are meant for the user: one message that says what was wrong, where, and how to fix it.

`print_safe` prints them, and makes control characters visible, which a terminal obeys.
"""

import contextlib
import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TextIO, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
LISTED = 10_000
"""Paths that a misspelt one is compared with; ten times as many take 6 seconds."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """Something outside the code is wrong (data, weights, disk). Commands print the message alone and exit with 1."""

    exit_status = 1


class UsageError(UserError):
    """The arguments of a command or the content of a YAML layer are wrong. Commands exit with 2."""

    exit_status = 2


class MissingInput(UserError):
    """Data, weights or a library are not on this machine; the message says how to get them."""


class Replaced(UserError):
    """A file is another than when the command began, which named its result by what the file held."""

    def __init__(self, path: object) -> None:
        # made again from its own text where an error comes from a loader's process
        super().__init__(f"{path}".rstrip("\n").removesuffix(_REPLACED) + _REPLACED)


_REPLACED = ": modified while the command was running; rerun it"


class MachineError(UserError):
    """The machine failed: memory, a loader process, shared memory, a system library, or the GPU's driver.

    The message says what to set. What a run had saved is kept.
    """


class DeviceLost(MachineError):
    """The GPU computes nothing more in this process, whatever is asked of it."""


class Notice(UserWarning):
    """A warning that is also a note in the record of the run."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a hint for a misspelt word: "; did you mean 'a' or 'b'?", or an empty string when nothing is near.

    For a path, what lies in its folder comes first.
    """
    path = Path(str(word))
    close = (_beside(path) if len(path.parts) > 1 else []) or _close(word, known)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _close(word: object, known: Iterable[str]) -> list[str]:
    names = {name.lower().strip("-"): name for name in known}
    misspelt = str(word).lower().strip("-")
    near = (difflib.get_close_matches(misspelt, [*names], n=3, cutoff=cutoff) for cutoff in (0.8, 0.6))
    return [names[match] for match in next(filter(None, near), ())]


def _beside(path: Path) -> list[str]:
    """Return what is near in the folder of a path, of the first `LISTED`; for a missing folder in the nearest ones."""
    folders = [path.parent] if path.parent.is_dir() else map(Path, _beside(path.parent))
    near = list[str]()
    for folder in folders:
        names = [neighbour.name for neighbour in islice(folder.glob("*"), LISTED)]
        near += [str(folder / name) for name in _close(path.name, names)]
    return near


def unknown(kind: str, name: str, known: Collection[str], more: str = "") -> UsageError:
    """Return the error for a name of a kind ("task") that is unknown, with the nearest.

    Args:
        more: what else can be given, "; or a YAML file".
    """
    return UsageError(f"unknown {kind} {name!r}{did_you_mean(name, known)} ({kind}s: {', '.join(known)}{more})")


def first_line(error: BaseException) -> str:
    """Return an error as one line: its type and the first line of its text, cut where it may hold a whole file."""
    line = next(iter(str(error).strip().splitlines()), "")
    shown = line if len(line) <= 300 else f"{line[:300]}..."
    return f"{type(error).__name__}: {shown}" if line else type(error).__name__


def shortened(names: Collection[object], most: int = 5) -> str:
    """Return the first few names of a list, and how many more there are; "nothing" for an empty list."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(list(map(str, names))[:most]) + more or "nothing"


def count(number: float, noun: str, plural: str = "s") -> str:
    """Return "1 run" or "3 runs"; `plural` is the ending of several."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"


def visible(text: str) -> str:
    """Return a text with control characters, also of writing direction, and bytes that are not UTF-8, as `\\x1b`."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """Return a text of several lines with all other control characters made visible."""
    return "\n".join(map(visible, text.split("\n")))


def print_safe(text: object = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a text, and make the control characters visible that untrusted names may hold; a terminal obeys them."""
    print(visible_lines(str(text)), file=file, flush=flush)


class Stopped(BaseException):
    """A signal ended the run; its state is saved."""

    exit_status = 143


_kept: ContextVar[list[UserError] | None] = ContextVar("_kept", default=None)


def reject(text: str) -> None:
    """Raise UsageError; within `errors_together`, keep it instead, so that the checks that follow also run."""
    with kept():
        raise UsageError(text)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keep a UserError that is raised inside until the `errors_together` around it ends; without one it is raised."""
    try:
        yield
    except UserError as error:
        errors = _kept.get()
        if errors is None:
            raise
        errors.append(error)


def attempt(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return what a function returns; None if it raises a UserError that is `kept`."""
    with kept():
        return function(*args, **kwargs)
    return None


def has_kept() -> bool:
    """Return whether an error is kept, so that slow checks can be left to the next attempt."""
    return bool(_kept.get())


@contextlib.contextmanager
def errors_in() -> Iterator[list[UserError]]:
    """Give a list, in which what `reject` and `kept` meet inside is kept, and a UserError that ends the block."""
    errors: list[UserError] = []
    token = _kept.set(errors)
    try:
        with kept():
            yield errors
    finally:
        _kept.reset(token)


@contextlib.contextmanager
def errors_together(*, join: bool = False) -> Iterator[None]:
    """Raise all errors that were kept inside as one error, each text once.

    It is a UsageError if one of them is, a MissingInput if all are, and a UserError otherwise.

    Args:
        join: leave the errors to the `errors_together` around this one, if there is one.
    """
    if join and _kept.get() is not None:
        yield
        return
    try:
        with errors_in() as errors:
            yield
    except (ArithmeticError, LookupError, TypeError, ValueError):
        if not errors:  # otherwise a value that is rejected already caused it
            raise
    texts = list(dict.fromkeys(map(str, errors)))
    if len(texts) == 1:
        raise errors[0]
    if texts:
        missing = MissingInput if all(isinstance(error, MissingInput) for error in errors) else UserError
        kind = UsageError if any(isinstance(error, UsageError) for error in errors) else missing
        raise kind("\n".join(texts)) from errors[0]


@contextlib.contextmanager
def unusable(what: str, *kinds: type[Exception], fix: str = "") -> Iterator[None]:
    """Raise a UserError "WHAT (REASON); FIX" for what a damaged file leads to inside; a UserError stays as it is.

    Args:
        kinds: the exceptions that it leads to; none: those of a file that is read and parsed.
    """
    caught = kinds or (OSError, ValueError, LookupError, TypeError, AttributeError)
    try:
        yield
    except caught as error:
        if isinstance(error, UserError):
            raise
        plain = isinstance(error, OSError | json.JSONDecodeError)  # whose texts say what they are
        raise UserError(f"{what} ({error if plain else first_line(error)}){fix and f'; {fix}'}") from error


@contextlib.contextmanager
def errors_naming(place: str) -> Iterator[None]:
    """Raise the UsageError that is raised inside with `place` in front of each of its lines."""
    try:
        yield
    except UsageError as error:
        raise UsageError("\n".join(f"{place}: {line}" for line in str(error).split("\n"))) from None
