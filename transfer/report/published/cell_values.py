"""Values of the cells of a table beside a published one; `texts.py` beside this file puts them into words."""

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
    """A published number as printed, or a crash.

    Attributes:
        text: as printed.
        mark: why it is no target: "in doubt", "for reference"; empty where it is one.
    """

    text: str
    mark: str = ""

    @classmethod
    def of(cls, value: Value, *, reference: bool) -> "Printed":
        """Return what is printed in a cell."""
        return cls(value.printed, "in doubt" if value.doubt else "for reference" if reference else "")


@dataclass(frozen=True)
class OptionReading:
    """Which of the values that a printed option may stand for a run has."""

    option: str
    used: Any
    printed: Any


@dataclass(frozen=True)
class Failures:
    """How trainings that broke down ended.

    Attributes:
        statuses: (status, how many), by name.
        of: how many trainings there were; 0 for the number of each kind of ending itself.
    """

    statuses: tuple[tuple[str, int], ...]
    of: int

    @classmethod
    def of_broken(cls, broken: Sequence[Record], total: int) -> "Failures":
        """Args: total: how many trainings there were, with these."""
        counts = Counter(str(record.outcome["status"]) for record in broken)
        return cls(tuple(sorted(counts.items())), total or len(broken))


@dataclass(frozen=True)
class OwnResult:
    """What one's own runs of a cell gave.

    Attributes:
        mean: over what counts as one seed, in percent; None where none has a score.
        decimals: of the published number, with which the mean is shown.
        failures: of the runs that broke down; None where none did.
        lost: how many pretrainings broke down, so that no run starts from them.
        pretrainings: how many there were, with these.
        at_chance: the mean with trainings that broke down at chance, in percent; None where it says nothing more.
        blocked: whether there is no run, since the trainings before it broke down: these are the `failures`.
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
    """A difference in points of percent, shown with the decimals of the published number."""

    value: float
    decimals: int


@dataclass(frozen=True)
class PointsInterval:
    """The 95 % interval of a difference in points.

    Attributes:
        low, high: its ends.
        decimals: of the published number.
        seeds: how many it is over.
        few: whether these are so few that the row says so.
    """

    low: float
    high: float
    decimals: int
    seeds: int
    few: bool


@dataclass(frozen=True)
class Hours:
    """Device hours, by kind: ("GPU", 6.0)."""

    by_kind: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Hours | None":
        """Return the hours of some runs; None where one does not say them."""
        kinds: dict[str, float] = {}
        for record in records:
            kind = kind_of_hours(record)
            kinds[kind] = kinds.get(kind, 0.0) + hours(record)
        return None if any(map(math.isnan, kinds.values())) else cls(tuple(kinds.items()))


@dataclass(frozen=True)
class Reasons:
    """Why a number cannot be compared.

    Attributes:
        reasons: all of them.
        letter: stands for those that are options, where these are many; a note of this letter lists them.
    """

    reasons: tuple[Reason, ...]
    letter: str = ""

    @property
    def options(self) -> tuple[Reason, ...]:
        """The differences that are options."""
        return tuple(reason for reason in self.reasons if reason.is_option)

    @property
    def others(self) -> tuple[Reason, ...]:
        """The differences that are not options."""
        return tuple(reason for reason in self.reasons if not reason.is_option)


@dataclass(frozen=True)
class PercentMore:
    """By how many percent more hours something takes; `text` as printed, where it is published."""

    value: float
    text: str = ""


@dataclass(frozen=True)
class HoursOfPair:
    """The hours of two runs, of one kind."""

    with_it: float
    without: float
    kind: str
