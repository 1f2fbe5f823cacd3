"""Estimates with intervals, intervals of rates, and adjusted p values. Imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

LEVEL = 0.95
POWER = 0.8
FEW = 10
"""Clusters that must disagree before a row says "equivalent" or names a smallest detectable difference."""
SKEWED = 40
"""Clusters that disagree below which Student's interval may be too short, as their sum is skewed."""
FEW_SEEDS = 5
"""Seeds up to which Satterthwaite's df makes intervals too short in some cases."""

Method = Literal["t", "exact", "rule of three"]
"""t: over clusters and seeds; exact: McNemar's test, of a single score Clopper and Pearson's interval; rule of three:
nothing varies."""


@dataclass(frozen=True)
class Estimate:
    """A linear contrast of mean scores; in their unit, as are its interval, `low` to `high`, and the errors."""

    estimate: float
    low: float
    high: float
    level: float = LEVEL
    p: float = 1.0
    """Two-sided p value of no difference, by the method of the interval: below 1 - level where that excludes 0, and
    only there."""
    method: Method = "t"
    stderr: float = 0.0
    """Standard error over test samples and, with several seeds, over seeds."""
    df: float = math.inf
    """Degrees of freedom of the Student distribution that the interval is taken from."""
    cluster_error: float = 0.0
    """Standard error over test samples alone, the trained models being given."""
    cluster_df: float = math.inf
    seed_error: float | None = None
    """Standard error over seeds beyond that over samples; None with one seed of each variant."""
    seeds: tuple[int, ...] = ()
    """Number of seeds of each variant."""
    paired: bool = False
    """Whether differences are taken seed by seed, the variants having the same ones."""
    borrowed: bool = False
    """Whether a variant of one seed is taken to vary over seeds as the others do."""
    clusters: int = 0
    effective_clusters: float = math.inf
    """Number of equal clusters that carry as much information (Kish 1965)."""
    discordant: int | None = None
    """Clusters on which the variants differ; None where it is not known, as of COCO's scores."""
    inner: tuple[float, float] = (-math.inf, math.inf)
    """The interval of the level 1 - 2 (1 - level), of two one-sided tests (Schuirmann 1987)."""
    of_models: tuple[float, float] = (-math.inf, math.inf)
    """The interval for these trained models on other samples, without what seeds vary."""

    @property
    def shown(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.p < 1 - self.level

    @property
    def few(self) -> bool:
        """Return whether too few clusters disagree for "equivalent" or a smallest detectable difference."""
        return (self.clusters if self.discordant is None else self.discordant) < FEW

    def within(self, margin: float) -> bool:
        """Return whether two one-sided tests at 1 - level show a difference smaller than the margin either way."""
        return not self.few and -margin < self.inner[0] and self.inner[1] < margin

    def smallest_difference(self, tests: int = 1) -> float:
        """Return the true difference that is shown four times in five; infinite where too few clusters disagree.

        Args:
            tests: number of tests in a family whose p values are adjusted, by which the level is divided.
        """
        from scipy.special import stdtrit

        level = round(1 - self.level, 9) / tests
        quantiles = float(stdtrit(self.df, 1 - level / 2) + stdtrit(self.df, POWER))
        return math.inf if self.few else quantiles * self.stderr


def wilson(successes: int, of: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the interval of a rate (Wilson 1927), good for few runs and for rates of 0 and 1; without runs [0, 1]."""
    from scipy.special import ndtri

    if not 0 <= successes <= of:
        raise ValueError(f"{successes} of {of} is not a rate")
    if not of:
        return 0.0, 1.0
    z, rate = float(ndtri((1 + level) / 2)), successes / of
    middle = (rate + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z * math.sqrt(rate * (1 - rate) / of + z**2 / (4 * of**2)) / (1 + z**2 / of)
    return (0.0 if not successes else middle - half), (1.0 if successes == of else middle + half)


def adjusted(p_values: Sequence[float], correction: str = "holm") -> list[float]:
    """Return the p values adjusted for a family of tests.

    "holm" (1979) bounds the chance of any false finding, "bh" (Benjamini and Hochberg 1995) the expected share of false
    ones among the findings; "none" leaves all as they are. nan stays nan and does not count.

    Raises:
        ValueError: an unknown correction.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(raw))
    order = known[np.argsort(raw[known], kind="stable")]
    size, place = len(order), np.arange(len(order))
    corrected = raw.copy()
    if correction == "holm":
        corrected[order] = np.minimum(np.maximum.accumulate(raw[order] * (size - place)), 1)
    elif correction == "bh":
        corrected[order] = np.minimum.accumulate((raw[order] * size / (place + 1))[::-1])[::-1]
    elif correction != "none":
        raise ValueError(f"correction must be holm, bh or none, not {correction!r}")
    return corrected.tolist()


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (n - 1) of a sample; nan where there are too few."""
    if not values:
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
