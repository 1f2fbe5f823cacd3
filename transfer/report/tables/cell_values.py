"""Values of cells that are neither numbers nor texts. `cell_text.py` beside this file formats them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

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
