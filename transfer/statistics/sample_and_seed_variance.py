"""The variances of a contrast over test samples and over seeds. Imports no torch.

Letters: B bootstrap resamples, C clusters, S seeds of a system.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.statistics.cluster_scores import WeightedSystems
from transfer.statistics.intervals import Few
from transfer.statistics.score_variance import (
    Discordance,
    Rate,
    effective_number,
    fewness,
    freedom_of,
    stretch_of,
    to_be_shown,
)
from transfer.statistics.sign_flips import sign_flip_p


@dataclass(frozen=True)
class Samples:
    """The part of a contrast's spread that comes from test samples."""

    variance: float
    spread: NDArray[Any]
    """[B] resampled contrasts less their mean."""
    few: float
    """Weight, 0 to 1, of the methods for few discordant clusters."""
    by_flips: float
    """p value of no difference by the sign-flip test over samples alone; nan if unknown."""
    freedom: float
    growth: Discordance | Rate | None = None
    discordant: int | None = None
    power: Few | None = None
    clusters: float | None = None
    """Kish's effective number of clusters."""
    thin: float = 0.0
    """Degree, 0 to 1, to which few clusters differ, by few amounts, so that seeds can be equal by luck."""

    @classmethod
    def of(
        cls,
        systems: WeightedSystems,
        clusters: int,
        bounds: tuple[float, float],
        single: bool,
        reach: float,
        rounding_error: float,
    ) -> "Samples":
        """Return the variance over test samples of the contrast of these systems.

        Args:
            single: whether the contrast is one score, not a difference.
            reach: sum of the absolute coefficients.
        """
        spread = systems.bootstrap_deviations(rounding_error)
        if systems.clusters is None:
            if spread.size < 2:
                raise ValueError("a score, or a draw of one, is not a number")
            return cls(float(spread.var()) * clusters / (clusters - 1), spread, 0.0, math.nan, clusters - 1)
        sums = systems.contrasts([system.sums.mean(axis=0) for system in systems.clusters])
        influence = systems.contrasts([system.influence.mean(axis=0) for system in systems.clusters])
        shares = np.mean([system.shares.mean(axis=0) for system in systems.clusters], axis=0)
        influence[np.abs(influence) <= rounding_error] = 0.0
        # of the scores without each cluster in turn (Bell and McCaffrey 2002), and Kish's number of clusters
        variance = float(((influence / (1 - shares)) ** 2).sum()) * (clusters - 1) / clusters
        kish = 1 / float((shares**2).sum())
        freedom = max(kish - 1, 1.0)
        if single:
            few, growth = _near_bounds(sums, shares, variance * (clusters - 1) / clusters, bounds)
            return cls(variance, spread, few, math.nan, freedom, growth, clusters=kish)
        sums[np.abs(sums) <= rounding_error] = 0.0
        few, seen = fewness(effective_number(sums)), int(np.count_nonzero(sums))
        span = bounds[1] - bounds[0]
        discordance = Discordance.of(sums, shares, span, span * reach / 2) if few else None
        if discordance is None:
            return cls(variance, spread, 0.0 if seen else few, math.nan, freedom, None, seen, clusters=kish)
        thin = _thin(sums)
        of_single_seeds = systems.cluster_contrasts(rounding_error)
        by_few = min(freedom_of(sums), freedom_of(shares))
        freedom = 1 / (few / by_few + (1 - few) / freedom + 1e-12)
        stretch = stretch_of(shares, int(np.count_nonzero(of_single_seeds)))
        power = Few(*to_be_shown(sums, of_single_seeds, shares, span, span * reach / 2), few * thin, freedom, stretch)
        return cls(variance, spread, few, sign_flip_p(sums), freedom, discordance, seen, power, kish, thin)

    def tails(self, level: float) -> tuple[float, float]:
        """Return the lengths below and above the estimate, relative to a normal distribution of the same variance."""
        from scipy.special import ndtri

        deviation = float(self.spread.std()) if self.spread.size else 0.0
        if self.few == 1 or not deviation:
            return 1.0, 1.0
        ends = np.abs(np.quantile(self.spread, [(1 - level) / 2, (1 + level) / 2]))
        below, above = (ends / (deviation * ndtri((1 + level) / 2))).tolist()
        return self.few + (1 - self.few) * below, self.few + (1 - self.few) * above


def _thin(parts: NDArray[Any]) -> float:
    """Return 1 where few of the contributions [C] are not 0 or all have one size, 0 where they vary like normal ones.

    A larger difference then means larger parts, rather than more of them.
    """
    sizes = np.abs(parts)
    seen = int(np.count_nonzero(sizes))
    alike = float(sizes.sum()) ** 2 / float((sizes**2).sum()) / seen if seen else 1.0
    return 1 - seen / len(parts) * min(3 * (1 - alike), 1.0)


def _near_bounds(
    sums: NDArray[Any], shares: NDArray[Any], variance: float, bounds: tuple[float, float]
) -> tuple[float, Rate | None]:
    """Return the weight of the methods for few clusters, and the rate, of a single score near one of its bounds."""
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0.0, None
    from_low, from_high = sums - low * shares, high * shares - sums
    numbers = [float(gaps.sum()) ** 2 / max(float((gaps**2).sum()), 1e-300) for gaps in (from_low, from_high)]
    return fewness(min(numbers)), Rate.of(float(sums.sum()), variance, shares, low, high)


@dataclass(frozen=True)
class Seeds:
    """The variance of a contrast over seeds; `freedom` is 0 with one seed each."""

    variance: float
    by_samples: float
    """Variance among seeds that resampling the test samples alone adds."""
    freedom: float
    """Degrees of freedom of the variance."""
    borrowed: bool
    """Whether a system of one seed takes its variance from the others."""

    @classmethod
    def of(cls, systems: WeightedSystems, sizes: Sequence[int], common: bool) -> "Seeds":
        """Return the variance over seeds, estimated from all seeds of the systems.

        Args:
            sizes: number of seeds in the mean of each system.
            common: whether these are the same for all systems.
        """
        several = [index for index, scores in enumerate(systems.scores) if len(scores) > 1]
        if not several:
            return cls(0.0, 0.0, 0.0, False)
        weights, of_means = systems.weights, [sizes[index] for index in several]
        single = sum(weights[index] ** 2 for index, scores in enumerate(systems.scores) if len(scores) == 1)
        variances, shares, freedoms = [], [], []
        for index in several:
            scores = systems.scores[index]
            factor = weights[index] ** 2 / sizes[index] + single / len(several)
            variances.append(factor * float(np.var(scores, ddof=1)))
            shares.append(factor * _seed_variance_by_samples(systems, index))
            freedoms.append(len(scores) - 1)
        return cls(sum(variances), sum(shares), _freedom_of_sum(variances, freedoms, of_means, common), bool(single))


def _seed_variance_by_samples(systems: WeightedSystems, index: int) -> float:
    """Return the variance among the seeds of one system that resampling the test samples causes."""
    if systems.clusters is None:
        return float(np.var(systems.resampled[index] - systems.scores[index][:, None], axis=0, ddof=1).mean())
    influence = systems.clusters[index].influence
    return float(np.var(influence, axis=0, ddof=1).sum())


def _freedom_of_sum(
    variances: Sequence[float], freedoms: Sequence[float], sizes: Sequence[int], common: bool = False
) -> float:
    """Return the degrees of freedom of a sum of independent estimates of variances.

    Satterthwaite's cover 94 to 97 % where all means are over as many seeds, three or more, whose standard deviations
    are up to 10 times one another; but 89 % of two seeds against five. Their harmonic mean with the fewest freedom of
    any, weighted by how unlike the numbers are, up to a half, covers 94 to 99 % (drawn 200,000 times).
    Of seeds that systems have in common the sum is more than the variance of their difference, so that freedom between
    Satterthwaite's and Welch's (1947) is enough.

    Args:
        sizes: number of seeds in each mean.
        common: whether the systems share their seeds.
    """
    total, squares = sum(variances), np.square(variances)
    if not total:
        return float(sum(freedoms))
    satterthwaite = total**2 / float((squares / freedoms).sum())
    if common:
        welch = total**2 / float((squares / (np.asarray(freedoms) + 2)).sum()) - 2
        return 3 / (1 / satterthwaite + 2 / welch)
    unlike = min(1 - (min(sizes) - 1) / (max(sizes) - 1), 0.5)
    return 1 / ((1 - unlike) / satterthwaite + unlike / min(freedoms))
