"""Values of cells that are neither numbers nor texts. `cell_text.py` beside this file puts them into words."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from transfer.records.record import Record
from transfer.statistics.intervals import wilson


@dataclass(frozen=True)
class Endings:
    """How many trainings ended in each way, the commonest first.

    Attributes:
        runs: of the row's own runs, (status, count).
        pretraining: of the trainings that the row's weights would have come from, and that left none.
    """

    runs: tuple[tuple[str, int], ...]
    pretraining: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, runs: Iterable[Record], lost: Iterable[Record]) -> "Endings":
        """Args: lost: the trainings that left no weights."""
        own, before = (Counter(record.outcome["status"] for record in records) for records in (runs, lost))
        return cls(tuple(own.most_common()), tuple(before.most_common()))


@dataclass(frozen=True)
class BreakdownRate:
    """How many of several trainings broke down, with the 95 % Wilson interval of their rate as a fraction."""

    broken: int
    of: int
    low: float
    high: float

    @classmethod
    def counted(cls, broken: int, of: int) -> "BreakdownRate":
        """The rate of these counts."""
        interval = wilson(broken, of)
        return cls(broken, of, interval.low, interval.high)


@dataclass(frozen=True)
class DatasetMean:
    """What a mean over data sets is over.

    Attributes:
        datasets: how many data sets it has in common with the other rows; there is a mean of two or more.
        marks: what marks the runs, as "smoke".
        broken: runs that broke down; then there is no mean.
        lost: pretrainings like its own that broke down.
        names: the data sets, where they are not the same in all rows.
    """

    datasets: int
    marks: tuple[str, ...] = ()
    broken: int = 0
    lost: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Violation:
    """A seed that trained at values above the first at which it broke down.

    Attributes:
        seed: the kind of the seed and its name, as ("seed", 0); None where the row has one seed.
        trained: the values at which it trained all the same.
        broken: the first value at which it broke down.
    """

    seed: tuple[str, object] | None
    trained: tuple[float, ...]
    broken: float
