"""Values of the cells beside published numbers; `texts.py` beside this file formats them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transfer.published.reasons import Reason
from transfer.published.schema import Value
from transfer.records.record import Record
from transfer.report.tables.costs import hours, kind_of_hours


@dataclass(frozen=True)
class Printed:
    """A published number, or a published crash.

    Attributes:
        text: the number as printed.
        mark: why it is not a target: "in doubt" or "for reference"; empty for a target.
    """

    text: str
    mark: str = ""

    @classmethod
    def from_value(cls, value: Value, *, reference: bool) -> "Printed":
        """Return a published value as a cell, marked as in doubt or as for reference."""
        return cls(value.printed, "in doubt" if value.doubt else "for reference" if reference else "")


@dataclass(frozen=True)
class OptionReading:
    """Value that a run has of an option whose printed value can be read in several ways."""

    option: str
    used: Any
    printed: Any


@dataclass(frozen=True)
class Failures:
    """Numbers of trainings that broke down, by status.

    Attributes:
        statuses: (status, count), sorted by status.
        total: number of trainings, broken down or not.
    """

    statuses: tuple[tuple[str, int], ...]
    total: int

    @classmethod
    def from_records(cls, broken: Sequence[Record], total: int) -> "Failures":
        """Count the statuses of `broken` out of `total` trainings."""
        counts = Counter(str(record.outcome["status"]) for record in broken)
        return cls(tuple(sorted(counts.items())), total)


@dataclass(frozen=True)
class OwnResult:
    """Result of the user's own runs of a cell.

    Attributes:
        mean: mean over seeds in percent; None without a score.
        decimals: number of decimals of the published number, with which the mean is shown.
        failures: statuses of the runs that broke down; None where none did.
        lost: number of pretrainings that broke down, so that no run starts from them.
        pretrainings: number of pretrainings, including the lost ones.
        at_chance: mean in percent that counts breakdowns at chance; None without breakdowns or without a score.
        blocked: whether there is no run because its pretrainings broke down; `failures` are then theirs.
    """

    mean: float | None
    decimals: int
    failures: Failures | None
    lost: int = 0
    pretrainings: int = 0
    at_chance: float | None = None
    blocked: bool = False


@dataclass(frozen=True)
class Points:
    """A difference in percentage points, shown with the number of decimals of the published number."""

    value: float
    decimals: int


@dataclass(frozen=True)
class PointsInterval:
    """The 95 % interval of a difference in percentage points.

    Attributes:
        low, high: its ends.
        decimals: number of decimals of the published number.
        seeds: number of seeds of the mean.
        few: whether the seeds are so few that their number is shown.
    """

    low: float
    high: float
    decimals: int
    seeds: int
    few: bool


@dataclass(frozen=True)
class Hours:
    """Device hours by kind of device: ("GPU", 6.0)."""

    by_kind: tuple[tuple[str, float], ...]

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> "Hours | None":
        """Return the total hours of some runs; None where a run has none recorded."""
        kinds: dict[str, float] = {}
        for record in records:
            kind = kind_of_hours(record)
            kinds[kind] = kinds.get(kind, 0.0) + hours(record)
        return None if any(map(math.isnan, kinds.values())) else cls(tuple(kinds.items()))


@dataclass(frozen=True)
class Reasons:
    """Reasons why a number cannot be compared with a published one.

    Attributes:
        reasons: all reasons.
        letter: abbreviates the reasons that are options, where they are many; a note explains it.
    """

    reasons: tuple[Reason, ...]
    letter: str = ""

    @property
    def options(self) -> tuple[Reason, ...]:
        """Reasons that are differences in options."""
        return tuple(reason for reason in self.reasons if reason.is_option)

    @property
    def others(self) -> tuple[Reason, ...]:
        """Reasons that are not differences in options."""
        return tuple(reason for reason in self.reasons if not reason.is_option)


@dataclass(frozen=True)
class PercentMore:
    """Percentage of additional hours; `text` is the printed number, empty for own runs."""

    value: float
    text: str = ""


@dataclass(frozen=True)
class HoursOfPair:
    """Device hours of two runs, with and without the costly part, on one kind of device."""

    with_it: float
    without: float
    kind: str
