"""Estimates with intervals, draws of clusters, rates and adjusted p values. Imports no torch.

All systems are scored on the same samples, so every draw of a bootstrap takes the same samples for all of them; samples
of a cluster (queries of an identity, or an image by itself) are taken together.
Letters: C clusters, R columns (runs, metrics), B bootstrap resamples.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.probing.draws import POWER, smallest_difference, smallest_shift

LEVEL = 0.95
BLOCK = 2**22
"""Clusters that are drawn at a time."""
KEPT = 2**26
"""The largest number of drawn clusters kept for the next row of a table: 128 MiB"""


@dataclass(frozen=True)
class Interval:
    """An estimate and where it may lie."""

    estimate: float
    low: float
    high: float
    level: float = LEVEL


@dataclass(frozen=True)
class Few:
    """Discordant clusters, where these are few, as needed for the power of the sign-flip test."""

    jump: float
    """Mean contribution of one discordant cluster to the difference."""
    noise: float
    """Effective number of discordant clusters observed."""
    most: float
    """Largest possible number of discordant clusters."""
    weight: float
    """Weight of the methods for few clusters, 0 to 1."""
    freedom: float
    """Degrees of freedom of the test used with many clusters."""
    stretch: float = 1.0
    """Factor by which clusters of unequal sizes raise the smallest difference that can be shown."""


@dataclass(frozen=True)
class Estimate(Interval):
    """A linear contrast of scores; in their unit, as are `low`, `high` and the errors."""

    p: float = 1.0
    """Two-sided p value of no difference; below 1 - level where the interval leaves 0 out, and only there"""
    error: float = 0.0
    """Standard error over test samples and, with several seeds, over seeds"""
    freedom: float = math.inf
    """Degrees of freedom of the Student distribution that the interval is taken from"""
    cluster_error: float = 0.0
    """Standard error over test samples alone, the trained models being given"""
    seed_error: float | None = None
    """Standard error over seeds alone, as far as it goes beyond that over samples; None with one seed"""
    seeds: tuple[int, ...] = ()
    """Number of seeds of each system."""
    paired: bool = False
    """Whether seeds were taken in pairs, the systems having the same ones"""
    borrowed: bool = False
    """Whether a system of one seed was taken to vary over seeds as the others do"""
    clusters: int = 0
    draws: int = 0
    inner: tuple[float, float] | None = None
    """The interval of the level 1 - 2 (1 - level), of two one-sided tests (Schuirmann 1987)"""
    effective_clusters: float | None = None
    """Number of equal clusters that would carry the same information (Kish 1965)."""
    discordant: int | None = None
    """Clusters on which the systems differ; None where that is not known, as of COCO's scores of unlike detectors"""
    few: Few | None = None

    @property
    def shown(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.p < 1 - self.level

    def within(self, margin: float) -> bool:
        """Return whether two one-sided tests at 1 - level show a difference smaller than the margin either way."""
        return self.inner is not None and -margin < self.inner[0] and self.inner[1] < margin

    def smallest_difference(self, power: float = POWER, tests: int = 1) -> float:
        """Return the smallest true difference detected with this power by as many seeds and samples as these.

        It is infinite where none can be detected, as with five clusters.

        Args:
            tests: number of tests in a family whose p values are adjusted. The level is divided by it, as Holm and
                Benjamini-Hochberg do for the smallest p: a larger difference is shown whatever the other tests say.
        """
        level = round(1 - self.level, 9) / tests
        by_error = self.error * _errors_to_show(self.freedom, power, level)
        if self.few is None:
            return by_error
        exact = (
            self.few.stretch * self.few.jump * smallest_shift(self.few.noise, self.few.most, power=power, level=level)
        )
        usual = self.cluster_error * _errors_to_show(self.few.freedom, power, level)
        if math.isinf(exact):
            return exact
        return math.sqrt(max(by_error**2 + self.few.weight * (exact**2 - usual**2), 0.0))


def _errors_to_show(freedom: float, power: float, level: float) -> float:
    """Return the smallest detectable difference, in its standard errors."""
    # a paired test of n draws has n - 1 degrees of freedom and, at a correlation of 1/2, the error 1 / sqrt(n)
    n = round(min(max(freedom, 1.0), 1e4)) + 1
    return smallest_difference(n, correlation=0.5, power=power, level=level) * math.sqrt(n)


def cluster_draws(sums: NDArray[Any], counts: NDArray[Any], *, draws: int, seed: int = 0) -> NDArray[Any]:
    """Return the means [B, R] of resampled clusters, the same clusters for every column; nan where none has a sample.

    Clusters with the same sums and counts are drawn together, which changes nothing but the time.

    Args:
        sums: [C, R], of the samples of each cluster. counts: [C, R], how many they are.
    """
    columns, clusters = sums.shape[1], len(sums)
    table = np.concatenate([sums, counts], axis=1).astype(np.float64)
    kinds, size = np.unique(table, axis=0, return_counts=True)
    means, step = np.empty((draws, columns)), max(1, BLOCK // clusters)
    blocks: Iterator[NDArray[Any]]
    if 16 * len(size) < clusters:
        rng = np.random.default_rng(seed)
        blocks = (rng.multinomial(clusters, size / clusters, size=count) for count in _steps(draws, step))
    elif draws * clusters <= KEPT:
        kinds, times = table, _times(clusters, draws, seed)
        blocks = (times[start : start + step] for start in range(0, draws, step))
    else:
        kinds, blocks = table, _drawn(clusters, draws, seed, step)
    for number, weights in enumerate(blocks):
        totals = weights.astype(np.float64) @ kinds
        with np.errstate(invalid="ignore", divide="ignore"):
            means[number * step : number * step + len(totals)] = totals[:, :columns] / totals[:, columns:]
    return means


@lru_cache(maxsize=1)
def _times(clusters: int, draws: int, seed: int) -> NDArray[Any]:
    """uint16 [B, C] of `_drawn`, kept since the rows of a table are mostly of one test set."""
    return np.concatenate(list(_drawn(clusters, draws, seed, max(1, BLOCK // clusters))))


def _drawn(clusters: int, draws: int, seed: int, step: int) -> Iterator[NDArray[Any]]:
    """uint16 [step, C] at a time: how often each cluster is drawn when as many are drawn as there are."""
    rng = np.random.default_rng(seed)
    for count in _steps(draws, step):
        drawn = rng.integers(clusters, size=(count, clusters))
        drawn += clusters * np.arange(count)[:, None]
        yield np.bincount(drawn.reshape(-1), minlength=count * clusters).reshape(count, clusters).astype(np.uint16)


def _steps(draws: int, step: int) -> Iterator[int]:
    return (min(step, draws - start) for start in range(0, draws, step))


def wilson(successes: int, of: int, level: float = LEVEL) -> Interval:
    """Return the interval of a rate (Wilson 1927), good for few runs and for rates of 0 and 1; without runs [0, 1]."""
    from scipy.special import ndtri

    if not 0 <= successes <= of:
        raise ValueError(f"{successes} of {of} is no rate")
    if not of:
        return Interval(math.nan, 0.0, 1.0, level)
    z, rate = float(ndtri((1 + level) / 2)), successes / of
    middle = (rate + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z * math.sqrt(rate * (1 - rate) / of + z**2 / (4 * of**2)) / (1 + z**2 / of)
    low, high = (0.0 if not successes else middle - half), (1.0 if successes == of else middle + half)
    return Interval(rate, low, high, level)


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
    adjusted_values: list[float] = corrected.tolist()
    return adjusted_values


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (n - 1) of a sample; nan where there are too few."""
    if not values:
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
