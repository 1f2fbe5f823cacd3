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
class Means:
    """Means of the corners that an effect is computed from, in percent or in the score's own unit."""

    values: tuple[float, ...]


@cell_text.register
def _(seeds: SeedCounts) -> str:
    if seeds.paired:
        return f"{seeds.counts[0]} in pairs"
    return "1" if set(seeds.counts) == {1} else ", ".join(map(str, seeds.counts))


@cell_text.register
def _(means: Means) -> str:
    return ", ".join(f"{mean:.2f}" for mean in means.values)


@cell_text.register
def _(effect: Effect) -> str:
    return effect.name
