"""Values of a comparison's cells that are neither numbers nor texts, and their texts."""

from dataclasses import dataclass

from transfer.comparison.compare_arms import Effect
from transfer.report.tables.cell_text import cell_text
from transfer.statistics.intervals import Estimate


@dataclass(frozen=True)
class SeedCounts:
    """Number of seeds in each arm of an estimate.

    Attributes:
        counts: number of seeds in each arm.
        paired: whether differences are taken seed by seed, since the arms have seeds in common.
    """

    counts: tuple[int, ...]
    paired: bool

    @classmethod
    def from_estimate(cls, estimate: Estimate) -> "SeedCounts":
        """Return the numbers of seeds of an estimate."""
        return cls(tuple(estimate.seeds), estimate.paired)


@dataclass(frozen=True)
class IntervalMethod:
    """Method of an interval.

    Attributes:
        name: "t", "exact" or "rule of three", see `transfer.statistics.intervals.Method`.
        two_seeds: whether some arm has two seeds, which leave the interval wide.
        of_models: with two seeds the interval for these trained models on other samples, as the row shows its own.
    """

    name: str
    two_seeds: bool
    of_models: tuple[float, float]

    @classmethod
    def of(cls, estimate: Estimate, scale: float) -> "IntervalMethod":
        """Return the method of an estimate; `scale` is the factor to the unit in which its row is shown."""
        low, high = (scale * end for end in estimate.of_models)
        return cls(estimate.method, min(estimate.seeds) == 2 and estimate.method == "t", (low, high))


@dataclass(frozen=True)
class Means:
    """Means of the corners that an effect is computed from, in percent or in the score's own unit."""

    values: tuple[float, ...]


@cell_text.register
def _(seeds: SeedCounts) -> str:
    if seeds.paired:
        return f"{seeds.counts[0]} in pairs"
    return "1" if set(seeds.counts) == {1} else ", ".join(map(str, seeds.counts))


@cell_text.register
def _(method: IntervalMethod) -> str:
    low, high = method.of_models
    return f"{method.name}, two seeds; these models [{low:.2f}, {high:.2f}]" if method.two_seeds else method.name


@cell_text.register
def _(means: Means) -> str:
    return ", ".join(f"{mean:.2f}" for mean in means.values)


@cell_text.register
def _(effect: Effect) -> str:
    return effect.name
