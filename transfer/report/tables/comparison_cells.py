"""Values of a comparison's cells that are neither numbers nor texts, with their texts."""

from dataclasses import dataclass

from transfer.comparison.compare_arms import Effect
from transfer.report.tables.cell_text import cell_text
from transfer.statistics.intervals import Estimate


@dataclass(frozen=True)
class SeedCounts:
    """How many seeds of each arm an estimate is over.

    Attributes:
        counts: of each arm.
        paired: whether the arms have the seeds in common, so that differences are taken seed by seed.
    """

    counts: tuple[int, ...]
    paired: bool

    @classmethod
    def of(cls, estimate: Estimate) -> "SeedCounts":
        """Return the seeds of an estimate."""
        return cls(tuple(estimate.seeds), estimate.paired)


@dataclass(frozen=True)
class Means:
    """The means that an effect is made of, in percent or in the score's own unit."""

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
