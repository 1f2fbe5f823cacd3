"""The variance of a score, or of a difference, as it would be if the true one were another. Imports no torch.

An interval that asks of each value whether the data would be unusual if it were true has to use the spread that they
would then have; with few samples that disagree, or a score near its bound, that spread differs much from the one seen.
Tango (1998, Statistics in Medicine 17:891) does so for the difference of two rates of the same samples. He takes counts
of samples; scores over clusters come as effective counts (Kish 1965; Rao and Scott 1992, Biometrics 48:577): so many
jumps of one size as have the same variance and the same third moment.
Letters: C clusters.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW, MANY = 50.0, 200.0
"""Effective numbers of clusters that disagree: up to the first the methods for few hold, from the second none."""


@dataclass(frozen=True)
class Discordance:
    """Clusters on which a difference rests, as counts: `more` jumps in its favour, `fewer` against it."""

    jump: float
    """Contribution of one jump to the difference."""
    more: float
    fewer: float
    most: float
    """Largest possible number of jumps."""
    sign: float
    estimate: float

    @classmethod
    def of(cls, parts: NDArray[Any], shares: NDArray[Any], span: float, reach: float) -> "Discordance | None":
        """Return the counts behind a difference, or None if the size of a jump is unknown.

        Clusters that have not disagreed yet may be larger than those that did: one more, of the size that a whole
        cluster has on the average over samples, is taken to stand among them with the weight 1 / (1 + those that did).

        Args:
            parts: [C] contribution of each cluster. shares: [C] share of the samples in each cluster.
            span: range of a sample's values. reach: largest possible difference.
        """
        sizes = np.abs(parts)
        seen = int(np.count_nonzero(sizes))
        squares, cubes = float((sizes**2).sum()), float((sizes**3).sum())
        unmet = span * float((shares**2).sum()) if math.isfinite(span) else 0.0
        weight = 1 / (1 + seen)
        if not squares + unmet:
            return None
        jump = (cubes + weight * unmet**3) / (squares + weight * unmet**2)
        estimate = float(parts.sum())
        both, apart = squares / jump**2, abs(estimate) / jump
        most = max(reach / jump if math.isfinite(reach) else 1e9, both, 1.0)
        sign = -1.0 if estimate < 0 else 1.0
        return cls(jump, (both + min(apart, both)) / 2, max((both - apart) / 2, 0.0), most, sign, estimate)

    def variance(self, difference: float) -> float:
        """Return how much larger the variance is if this is the true difference, compared with the estimate.

        n (2 q + d (1 - d)), d the difference and q the share of jumps against it, the most likely one under d.
        """
        moved = self.sign * (difference - self.estimate) / self.jump
        seen = self.more - self.fewer
        return self.jump**2 * (self._at(seen + moved) - self._at(seen))

    def _at(self, jumps: float) -> float:
        n, d = self.most, min(max(jumps / self.most, -1.0), 1.0)
        b = -self.more - self.fewer + (2 * n - self.more + self.fewer) * d
        root = math.sqrt(max(b * b + 8 * n * self.fewer * d * (1 - d), 0.0))
        return max(n * ((root - b) / (2 * n) + d * (1 - d)), 0.0)


@dataclass(frozen=True)
class Rate:
    """A score between bounds, as a rate of so many effective samples (Korn and Graubard 1998).

    The ends are those of Clopper and Pearson (1934) with p (1 - p) / variance samples (Survey Methodology 24:193). On
    either side one more cluster counts, not met yet (Fay and Feuer 1997, Statistics in Medicine 16:791).
    """

    low: float
    high: float
    rate: float
    variance: float
    """Variance of the rate."""
    unmet: float
    """Share of the samples of a cluster that has not been met: one in Kish's number of clusters"""

    @classmethod
    def of(cls, score: float, variance: float, shares: NDArray[Any], low: float, high: float) -> "Rate":
        """Return the rate of a score with this variance; `shares` [C] are the shares of the samples in each cluster."""
        unmet = float((shares**2).sum())
        rate = min(max((score - low) / (high - low), 0.0), 1.0)
        return cls(low, high, rate, variance / (high - low) ** 2, unmet)

    def lengths(self, level: float, freedom: float) -> tuple[float, float]:
        """Return the distances from the score to the lower and to the upper end of its interval."""
        up, down = self._above(self.rate, level, freedom), self._above(1 - self.rate, level, freedom)
        return (self.high - self.low) * down, (self.high - self.low) * up

    def _above(self, rate: float, level: float, freedom: float) -> float:
        """Return the distance from a rate to the upper end of its interval; the lower end is that of 1 - rate."""
        from scipy.special import betaincinv, ndtri, stdtrit

        # wider for few clusters, as Student's distribution is than the normal one
        factor = float(stdtrit(freedom, (1 + level) / 2) / ndtri((1 + level) / 2)) ** 2
        jump = (factor * self.variance + self.unmet**2) / (rate * (1 - rate) + self.unmet)
        more = (rate + self.unmet) / jump
        less = 1 / jump + 1 - more
        return 1 - rate if less <= 0 or rate >= 1 else float(betaincinv(more, less, (1 + level) / 2)) - rate


def fewness(effective: float) -> float:
    """Return the weight of the methods for few clusters: 1 up to `FEW`, 0 from `MANY`, evenly in between."""
    return min(max((MANY - effective) / (MANY - FEW), 0.0), 1.0)


def to_be_shown(
    parts: NDArray[Any], of_single_seeds: NDArray[Any], shares: NDArray[Any], span: float, reach: float
) -> tuple[float, float, float]:
    """Return the mean contribution, the number and the largest number of discordant clusters, for the power.

    A true difference is there whatever the seed, so that its clusters differ as they do between single runs. Before any
    has, from one to all samples of a cluster are taken to differ, each number as likely.

    Args:
        parts: [C] contributions to the difference. of_single_seeds: [S, C] the same for the runs of each seed.
    """
    sizes = np.abs(of_single_seeds)
    total, squares = float(sizes.sum()), float((sizes**2).sum())
    unmet = span * float((shares**2).sum() + shares[shares > 0].min()) / 2 if math.isfinite(span) else 0.0
    weight = 3 / (3 + int(np.count_nonzero(sizes)))
    if not total + unmet:
        return 0.0, 0.0, 1.0
    jump = (squares + weight * unmet**2) / (total + weight * unmet)
    noise = float((parts**2).sum()) / jump**2
    return jump, noise, max(reach / jump if math.isfinite(reach) else 1e9, noise, 1.0)


def stretch_of(shares: NDArray[Any], seen: int) -> float:
    """Return the factor by which clusters of unequal sizes raise the smallest difference that can be shown.

    The sizes of those that will differ are less known the fewer were seen. The form and its three numbers are fitted to
    the power in the cells of `tests.benchmarks.evidence` of unlike clusters; it is 1 where all are of one size.

    Args:
        shares: [C] share of the samples in each cluster. seen: number of discordant clusters.
    """
    unlike = max(len(shares) * float((shares**2).sum()) - 1, 0.0)  # Kish's design effect less 1
    return float(1 + 0.65 * unlike**1.3 * 25 / (25 + seen))


def freedom_of(sizes: NDArray[Any]) -> float:
    """Return the degrees of freedom of the sum of squares of contributions [C]; infinite if all are equal.

    2 / (kurtosis - 1) of each, that of a normal distribution being 3.
    """
    seen, effective = int(np.count_nonzero(sizes)), effective_number(sizes)
    return max(2 * seen / max(seen / effective - 1, 1e-9), 1.0) if seen else math.inf


def effective_number(parts: NDArray[Any]) -> float:
    """Return the effective number of contributions [C], (sum of squares)^2 / sum of fourth powers."""
    squares = parts**2
    total = float(squares.sum())
    return total**2 / float((squares**2).sum()) if total else 0.0
