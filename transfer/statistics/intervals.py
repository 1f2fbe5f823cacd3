"""Scores of one variant by seed, with what each cluster of test samples adds to their variance; estimates with
intervals, intervals of rates, and adjusted p values. Imports no torch.

Shapes: B resamples, C clusters, S seeds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError

LEVEL = 0.95
POWER = 0.8
FEW_CLUSTERS = 10
"""Clusters that must disagree before a row says "equivalent" or names a smallest detectable difference."""
SKEWED = 40
"""Clusters that disagree below which Student's interval may be too short, as their sum is skewed."""

Method = Literal["t", "exact", "rule of three"]
"""t: over clusters and seeds; exact: McNemar's test, of a single score Clopper and Pearson's interval; rule of three:
nothing varies."""


@dataclass(frozen=True)
class Estimate:
    """A linear contrast of mean scores; in their unit, as are its interval, `low` to `high`, and the errors."""

    estimate: float
    low: float
    high: float
    p: float = 1.0
    """Two-sided p value of no difference, by the method of the interval: below 1 - `LEVEL` where that excludes 0,
    and only there."""
    method: Method = "t"
    errors: tuple[tuple[float, float], ...] = ()
    """Standard error and degrees of freedom over samples and seeds, and with several seeds over these alone: the wider
    interval counts at any level."""
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
    discordant: int = 0
    """Clusters on which the variants differ; all where it is not known, as of COCO's scores."""
    inner: tuple[float, float] = (-math.inf, math.inf)
    """The interval of the level 1 - 2 (1 - `LEVEL`), of two one-sided tests (Schuirmann 1987)."""
    of_models: tuple[float, float] = (-math.inf, math.inf)
    """The interval for these trained models on other samples, without what seeds vary."""

    def shown(self, slack: float = 0.0) -> bool:
        """Return whether the interval excludes 0.

        Args:
            slack: rounding of the number that is compared with, which may widen the difference.
        """
        return self.low > slack or self.high < -slack

    @property
    def few(self) -> bool:
        """Return whether too few clusters disagree for "equivalent" or a smallest detectable difference."""
        return self.discordant < FEW_CLUSTERS

    def within(self, margin: float, slack: float = 0.0) -> bool:
        """Return whether two one-sided tests at 5 % show a difference smaller than the margin either way; for `slack`
        see `shown`.
        """
        return not self.few and -margin < self.inner[0] - slack and self.inner[1] + slack < margin

    def beside(self, percent: float) -> "Estimate":
        """Return the difference of a score that is a fraction from a number in percent, in percentage points."""
        estimate, low, high, inner_low, inner_high = (
            100 * end - percent for end in (self.estimate, self.low, self.high, *self.inner)
        )
        return replace(self, estimate=estimate, low=low, high=high, inner=(inner_low, inner_high))

    def smallest_difference(self, tests: int = 1) -> float:
        """Return the true difference that is shown four times in five; infinite where too few clusters disagree.

        Args:
            tests: number of tests in a family whose p values are adjusted, by which the level is divided.
        """
        from scipy.special import stdtrit

        level = round(1 - LEVEL, 9) / tests
        detected = (error * float(stdtrit(df, 1 - level / 2) + stdtrit(df, POWER)) for error, df in self.errors)

        return math.inf if self.few else max(detected)


def wilson(successes: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate (Wilson 1927), good for few runs and rates of 0 and 1; without runs [0, 1]."""
    from scipy.stats import binomtest

    if not total:
        return 0.0, 1.0
    low, high = binomtest(successes, total).proportion_ci(LEVEL, method="wilson")
    return float(low), float(high)


def newcombe(failed_a: int, of_a: int, failed_b: int, of_b: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two independent rates (Newcombe 1998, Statistics in Medicine
    17:873, method 10: Wilson's intervals combined by squares).
    """
    a, b = failed_a / of_a, failed_b / of_b
    (low_a, high_a), (low_b, high_b) = wilson(failed_a, of_a), wilson(failed_b, of_b)
    return a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Return Spearman's correlation with its 95 % interval (Bonett and Wright 2000, Psychometrika 65:23).

    A perfect order has no variance by their formula; its interval begins where one of a single exchange would.

    Raises:
        UserError: fewer than four pairs, or all values of one side are equal.
    """
    from scipy.special import ndtri
    from scipy.stats import spearmanr

    n = len(x)
    if n < 4 or len({*x}) < 2 or len({*y}) < 2:
        raise UserError(f"a rank correlation needs four runs with different values, not {n}")
    rho = float(spearmanr(x, y).statistic)
    most = 1 - 12 / (n * (n**2 - 1))
    known = max(-most, min(most, rho))
    half = float(ndtri((1 + LEVEL) / 2)) * math.sqrt((1 + known**2 / 2) / (n - 3))
    low, high = math.tanh(math.atanh(known) - half), math.tanh(math.atanh(known) + half)
    return rho, min(low, rho), max(high, rho)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return the p values adjusted for a family of tests, which bounds the chance of any false finding (Holm 1979)."""
    raw = np.asarray(p_values, dtype=np.float64)
    order, corrected = np.argsort(raw, kind="stable"), raw.copy()
    corrected[order] = np.minimum(np.maximum.accumulate(raw[order] * (len(raw) - np.arange(len(raw)))), 1)
    return corrected.tolist()


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (n - 1) of a sample; nan where there are too few."""
    mean, others = fmean(values) if values else math.nan, len(values) - 1
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / others) if others > 0 else math.nan


@dataclass(frozen=True, eq=False)
class Scores:
    """A score of each seed of one variant."""

    values: NDArray[Any]
    """[S] score of each seed on all samples."""
    influence: NDArray[Any]
    """[S, C or B] parts whose sum of squares is the score's variance over samples, given the trained model."""
    sums: NDArray[Any] | None
    """[S, C] part of each cluster in the score, its samples' sum over the number of all; None for AP."""
    shares: NDArray[Any]
    """[C] share of the samples that each cluster holds."""
    single: bool = False
    """Whether every cluster is one sample, of which the score is a mean."""
    resampled: NDArray[Any] | None = None
    """[S, B] values of a score that is not a mean, on resampled clusters."""

    @classmethod
    def of_clusters(cls, sums: NDArray[Any], counts: NDArray[Any]) -> "Scores":
        """Return scores that are means over samples.

        The influence of a cluster of n_c of N samples is (sum - score n_c) / N / sqrt(1 - n_c / N), so that their sum
        of squares is the bias-reduced variance CR2 (Bell and McCaffrey 2002, Survey Methodology 28:169).

        Args:
            sums: [S, C] sum of the values of each seed and cluster. counts: [C] samples of each cluster, all above 0.

        Raises:
            ValueError: fewer than two clusters, or a sum is not finite.
        """
        _check(len(counts), sums)
        shares, parts = counts / counts.sum(), sums / counts.sum()
        values = parts.sum(axis=1)
        influence = (parts - values[:, None] * shares) / np.sqrt(1 - shares)
        return cls(values, influence, parts, shares, bool((counts == 1).all()))

    @classmethod
    def of_resamples(cls, values: NDArray[Any], resampled: NDArray[Any], clusters: int) -> "Scores":
        """Return scores that are no means, such as AP, with their values on bootstrap resamples of the clusters.

        Args:
            values: [S] score of each seed. resampled: [S, B] its values, resample b equal for all seeds and variants.
            clusters: number C of clusters.

        Raises:
            ValueError: fewer than two clusters, or a value is not finite.
        """
        _check(clusters, values, resampled)
        scale = np.sqrt(clusters / (clusters - 1) / (resampled.shape[1] - 1))
        influence = (resampled - resampled.mean(axis=1, keepdims=True)) * scale
        return cls(values, influence, None, np.full(clusters, 1 / clusters), resampled=resampled)

    @classmethod
    def of_seeds(cls, values: NDArray[Any]) -> "Scores":
        """Return scores [S] of which no parts by sample are known, so that they vary over seeds alone."""
        return cls(values, np.zeros((len(values), FEW_CLUSTERS)), None, np.full(FEW_CLUSTERS, 1 / FEW_CLUSTERS))

    @property
    def df(self) -> float:
        """Degrees of freedom of a variance over the clusters, C - 1 if these are of one size.

        Bell and McCaffrey's (2002) of CR2 for clusters whose samples are alike: tr(M)^2 / tr(M^2), M = B B^T and B =
        (diag(h) - h h^T) / sqrt(1 - h) by rows, h the shares. M is written as diag(d) - u v^T - v u^T + q u u^T.
        """
        h, root = self.shares, np.sqrt(1 - self.shares)
        u, v, d, q = h / root, h**2 / root, h**2 / (1 - h), (h**2).sum()
        trace = d.sum() - 2 * (u @ v) + q * (u @ u)
        squares = (d**2).sum() - 4 * (d * u) @ v + 2 * q * (d * u) @ u
        squares += 2 * (u @ u) * (v @ v) + 2 * (u @ v) ** 2 - 4 * q * (u @ u) * (u @ v) + (q * (u @ u)) ** 2
        return float(trace**2 / squares)

    def merged(self, groups: Sequence[Sequence[int]]) -> "Scores":
        """Return a seed for each group of indices of seeds: the mean of these."""
        merged = dict[str, Any]()
        for name in ("values", "influence", "sums", "resampled"):
            array = getattr(self, name)
            if array is not None:
                merged[name] = np.stack([array[list(group)].mean(axis=0) for group in groups])
        return replace(self, **merged)

    def of_seeds_at(self, places: Iterable[int]) -> "Scores":
        """Return the scores of some seeds alone, by their indices."""
        return self.merged([[place] for place in places])

    def with_constant(self, value: float, seeds: int) -> "Scores":
        """Return the scores with as many seeds more, whose samples all have this value."""
        rows = {"values": np.full(seeds, value), "influence": np.zeros((seeds, self.influence.shape[1]))}
        if self.sums is not None:
            rows["sums"] = np.tile(value * self.shares, (seeds, 1))
        if self.resampled is not None:
            rows["resampled"] = np.full((seeds, self.resampled.shape[1]), value)
        longer: dict[str, Any] = {name: np.concatenate([getattr(self, name), more]) for name, more in rows.items()}
        return replace(self, **longer)


def _check(clusters: int, *arrays: NDArray[Any]) -> None:
    if clusters < 2:
        raise ValueError(f"an interval needs at least 2 clusters, not {clusters}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("a score, or a part of one, is not a number")


RESAMPLES = 500


def resample_counts(names: NDArray[Any]) -> NDArray[Any]:
    """Return how often each of M samples is in each of B = 500 bootstrap resamples, int64 [B, M].

    Resample b has the same samples for all runs: each of the names [M], in sorted order, as often as the generator of
    seed 0 draws it.
    """
    times = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES)
    counts = np.empty_like(times)
    counts[:, np.argsort(names)] = times
    return counts
