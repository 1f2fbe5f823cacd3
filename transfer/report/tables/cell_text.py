"""The text of a table's cell by the type of its value.

A module that defines further types of values registers their texts with `@cell_text.register`, and with
`@full_text.register` where CSV, which has no notes, needs a longer text.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from transfer.records.comparability import Comparability
from transfer.records.fields import content_label, value_label
from transfer.statistics.intervals import wilson


@dataclass(frozen=True)
class Endings:
    """Number of trainings that ended in each status, the commonest first.

    Attributes:
        runs: (status, count) of the row's runs.
        pretraining: (status, count) of the pretraining runs that failed and left no weights for the row.
    """

    runs: tuple[tuple[str, int], ...]
    pretraining: tuple[tuple[str, int], ...] = ()

    @classmethod
    def from_statuses(cls, runs: Iterable[str], lost: Iterable[str]) -> "Endings":
        """Count the statuses of a row's runs and of the `lost` pretrainings, which left no weights."""
        return cls(tuple(Counter(runs).most_common()), tuple(Counter(lost).most_common()))


@dataclass(frozen=True)
class BreakdownRate:
    """Number of training runs that failed out of those judged, with the 95 % Wilson interval of the rate as a fraction.

    `not_judged` trainings are in neither number.
    """

    broken: int
    total: int
    not_judged: int
    low: float
    high: float

    @classmethod
    def from_counts(cls, broken: int, total: int, not_judged: int = 0) -> "BreakdownRate":
        """Return the rate with its interval."""
        return cls(broken, total, not_judged, *wilson(broken, total))


@dataclass(frozen=True)
class MeanInterval:
    """A mean in the unit of tables with its 95 % interval, where there is one, and the marks of its runs."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    mark: str = ""
    digits: str = ".1f"

    @property
    def texts(self) -> tuple[str, str]:
        """The mean with its marks, and the interval; an empty text for what is missing."""
        mean, low, high = ("" if end is None else f"{end:{self.digits}}" for end in (self.mean, self.low, self.high))
        return mean + self.mark, f"[{low}, {high}]" if low and high else ""


@dataclass(frozen=True)
class Violation:
    """Values that train although a smaller one fails.

    Attributes:
        trained: the values above `broken` that train.
        broken: the smallest value that fails.
    """

    trained: tuple[float, ...]
    broken: float


@singledispatch
def cell_text(value: Any) -> str:
    """Return the text of a value that is not a number, for Markdown, terminals and HTML."""
    return str(value)


@singledispatch
def full_text(value: Any) -> str:
    """Return the text of a value for CSV, which must need no note; by default that of `cell_text`."""
    return cell_text(value)


@cell_text.register
def _(value: None) -> str:
    return ""


@cell_text.register
def _(value: bool) -> str:
    return value_label(value)


@cell_text.register
def _(value: tuple) -> str:  # type: ignore[type-arg]  # singledispatch reads the bare type
    return "; ".join(map(cell_text, value))


@cell_text.register
def comparability_text(group: Comparability) -> str:
    """Return the protocol fields in which a group of rows differs from other groups: "lr 0.05, epochs 20"."""
    fields = dict(group.fields)
    return content_label(fields, fields) or f"{', '.join(fields)} without effect"


@cell_text.register
def _(value: Endings) -> str:
    runs = [f"{count} {status}" for status, count in value.runs]
    return ", ".join([*runs, *(f"{count} {status} in pretraining" for status, count in value.pretraining)])


@cell_text.register
def _(value: BreakdownRate) -> str:
    interval = f" ({100 * value.low:.0f} to {100 * value.high:.0f} %)" if value.total > 1 else ""
    return f"{value.broken} of {value.total}{interval}" + f", {value.not_judged} not judged" * bool(value.not_judged)


@cell_text.register
def _(value: MeanInterval) -> str:
    return " ".join(filter(None, value.texts))


@cell_text.register
def _(value: Violation) -> str:
    return f"{', '.join(map(value_label, value.trained))} trained above {value.broken:g}, which did not"
