"""Values of a comparison's cells that are neither numbers nor texts, and their texts."""

from dataclasses import dataclass

from transfer.comparison.compare_arms import Effect
from transfer.report.tables.cell_text import cell_text
from transfer.statistics.intervals import Estimate


@dataclass(frozen=True)
class SeedCounts:
    """Number of seeds in each variant of an estimate.

    Attributes:
        counts: number of seeds in each variant.
        paired: whether differences are taken seed by seed, since the variants have seeds in common.
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
        few_seeds: "two seeds" or "one seed" where some variant has no more, which leaves the interval wide; else empty.
        of_models: with few seeds the interval for these trained models on other samples, as the row shows its own.
    """

    name: str
    few_seeds: str
    of_models: tuple[float, float]

    @classmethod
    def of(cls, estimate: Estimate, scale: float) -> "IntervalMethod":
        """Return the method of an estimate; `scale` is the factor to the unit in which its row is shown."""
        low, high = (scale * end for end in estimate.of_models)
        few = {1: "one seed", 2: "two seeds"}.get(min(estimate.seeds), "") if estimate.seed_error is not None else ""
        return cls(estimate.method, few if estimate.method == "t" else "", (low, high))


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
    return method.name + (f", {method.few_seeds}; these models [{low:.2f}, {high:.2f}]" if method.few_seeds else "")


@cell_text.register
def _(means: Means) -> str:
    return ", ".join(f"{mean:.2f}" for mean in means.values)


@cell_text.register
def _(effect: Effect) -> str:
    return effect.name
