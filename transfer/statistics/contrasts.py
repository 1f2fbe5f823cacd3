"""Linear contrasts of systems' scores, with intervals over test samples and seeds. Imports no torch.

`docs/concepts/statistics.md` has the formulas in one place. Letters: B draws, C clusters, K systems,
S seeds of a system.

Scores vary over test samples and over seeds. The first part is that of the bootstrap; the second is Student's,
from the few scores of each system, since resampling three seeds gives an interval that is much too short. What
samples and seeds do jointly is in both parts and is taken from the first:

    variance = spread over seeds + (spread over samples - what samples alone spread seeds apart)

By luck that can be less than the spread over samples. Raised to it, intervals from three seeds that do nothing
would cover 98 to 99 %; so it is raised only where few clusters disagree, and seeds can be equal by luck. The
degrees of freedom are Satterthwaite's (1946), corrected for few seeds, see `_freedom`. The crossed components are
those of Owen (2007), "The pigeonhole bootstrap", doi 10.1214/07-AOAS122; how much seeds matter is the subject of
Bouthillier et al. (2021), arXiv 2103.03098.

Where few clusters disagree, resampling them says little. As far as that is so (`fewness`), the p value of the
samples' part is the sign-flip test's, and the interval asks of each difference what variance it would come with
(Tango 1998; of a single score near its bounds Wilson 1927), see `transfer.statistics.score_variance`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.statistics.cluster_scores import ClusterScores, WeightedSystems, common_seeds
from transfer.statistics.intervals import LEVEL, Estimate
from transfer.statistics.sample_and_seed_variance import Samples, Seeds
from transfer.statistics.score_variance import Discordance, Rate

UNKNOWN = (-math.inf, math.inf)
"""Bounds of a score of which nothing is known."""


def contrast(
    scores: Sequence[NDArray[Any]],
    drawn: Sequence[NDArray[Any]],
    coefficients: Sequence[float],
    *,
    clusters: int,
    parts: Sequence[ClusterScores] | None = None,
    bounds: tuple[float, float] = UNKNOWN,
    seeds: Sequence[Sequence[object]] | None = None,
    level: float = LEVEL,
) -> Estimate:
    """Return sum_k c_k m_k with its interval, m_k the mean score of system k over its seeds.

    Args:
        scores: [S_k] scores of each system, one for each seed.
        drawn: [S_k, B] scores of each system on resampled clusters, resample b the same for all systems. B may be 0
            if `parts` show that few clusters disagree.
        coefficients: +1, -1 for a difference; +1, -1, -1, +1 for the interaction of a 2 x 2.
        clusters: number of clusters resampled.
        parts: contributions of the clusters for each system; without them the methods for many clusters are used.
        bounds: smallest and largest value of a sample.
        seeds: labels [S_k] of each system's seeds; without them they may be the same. Seeds that the systems share are
            paired, so that what such seeds share, as the order of the data, cancels. Two pairs would leave one
            degree of freedom: then the means are over the shared seeds, and the systems' variances independent.

    Raises:
        ValueError: fewer than two clusters, or a score or resampled score is not finite.
    """
    if clusters < 2:
        raise ValueError(f"an interval needs at least 2 clusters, not {clusters}")
    _check_finite(scores, drawn, parts)
    weights = np.asarray(coefficients, dtype=np.float64)
    systems = WeightedSystems(weights, list(scores), list(drawn), None if parts is None else list(parts))
    shared_seeds = common_seeds(seeds) if seeds else None
    estimate = _of_systems(systems, shared_seeds, not seeds or shared_seeds is not None, clusters, bounds, level)
    return replace(estimate, seeds=tuple(map(len, shared_seeds or scores)), draws=drawn[0].shape[1])


def _of_systems(
    systems: WeightedSystems,
    shared_seeds: list[list[int]] | None,
    common: bool,
    clusters: int,
    bounds: tuple[float, float],
    level: float,
) -> Estimate:
    """Return the estimate without the numbers of seeds and resamples.

    Args:
        shared_seeds: indices of the seeds that all systems share, see `common_seeds`.
        common: whether the systems may be taken to have the same seeds.
    """
    rounding_error = systems.rounding_error
    averaged = systems if shared_seeds is None else systems.select(shared_seeds)
    reach = float(np.abs(systems.weights).sum())
    single = reach == abs(float(systems.weights.sum()))
    paired = shared_seeds is not None and (len(shared_seeds[0]) > 2 or averaged.equal_for_each_seed(rounding_error))
    if paired:
        averaged = systems = averaged.paired_differences(rounding_error)
    samples = Samples.of(averaged, clusters, bounds, single, reach, rounding_error)
    varying = Seeds.of(systems, [len(values) for values in averaged.scores], common)
    estimate = _combined(averaged.estimate(rounding_error), samples, varying, clusters, level)
    estimate = replace(estimate, paired=paired, borrowed=varying.borrowed)
    if single and bounds != UNKNOWN:
        return replace(estimate, low=max(estimate.low, bounds[0]), high=min(estimate.high, bounds[1]))
    return estimate


def _check_finite(
    scores: Sequence[NDArray[Any]], drawn: Sequence[NDArray[Any]], parts: Sequence[ClusterScores] | None
) -> None:
    """Raise ValueError unless every score, resampled score and cluster's contribution is finite."""
    if not all(np.isfinite(values).all() for values in (*scores, *drawn)):
        raise ValueError("a score, or a draw of one, is not a number")
    if parts is not None and not all(np.isfinite(system.sums).all() for system in parts):
        raise ValueError("what a cluster adds to a score is not a number")


def with_more_seeds(estimate: Estimate, more: int) -> Estimate:
    """Return the estimate expected with `more` seeds of each system that vary as these do, on the same samples."""
    sizes = [size + more for size in estimate.seeds]
    seed_error = (estimate.seed_error or 0.0) * math.sqrt(min(estimate.seeds) / min(sizes))
    total = estimate.cluster_error**2 + seed_error**2
    freedom = min(sizes) - 1 if estimate.paired else sum(size - 1 for size in sizes)
    return replace(
        estimate,
        error=math.sqrt(total),
        freedom=_freedom(seed_error**2 / total if total else 0.0, freedom, estimate.clusters - 1),
        seed_error=seed_error,
        seeds=tuple(sizes),
    )


def _combined(estimate: float, samples: Samples, seeds: Seeds, clusters: int, level: float) -> Estimate:
    """Return the estimate without the fields that describe its systems."""
    few = samples.few
    thin = few * samples.thin
    shared = thin * min(seeds.by_samples, seeds.variance) + (1 - thin) * min(seeds.by_samples, samples.variance)
    total = samples.variance - shared + seeds.variance
    growth = samples.growth
    known = Estimate(
        estimate=estimate,
        low=estimate,
        high=estimate,
        level=level,
        p=float(estimate == 0),
        error=math.sqrt(total),
        cluster_error=math.sqrt(samples.variance),
        seed_error=math.sqrt(max(seeds.variance - seeds.by_samples, 0.0)) if seeds.freedom else None,
        clusters=clusters,
        inner=(estimate, estimate),
        effective_clusters=samples.clusters,
        discordant=samples.discordant,
        few=samples.power,
    )
    if not total and not (few and growth):
        return known
    share = min(seeds.variance / total, 1.0) if total else 0.0
    freedom = _freedom(share, seeds.freedom, samples.freedom)
    ends = _Ends(estimate, total, share, freedom, samples)
    low, high = ends.at(level, samples.tails(level))
    inner = ends.at(2 * level - 1, samples.tails(2 * level - 1)) if level > 0.5 else (estimate, estimate)
    if isinstance(growth, Discordance):  # counts move by whole jumps
        inner = inner[0] - growth.jump / 2, inner[1] + growth.jump / 2
    interval = replace(known, low=low, high=high, inner=inner, freedom=freedom)
    return _agreeing(interval, _p(interval, samples, ends, total), ends.p_of_none(samples.tails(level)))


@dataclass(frozen=True)
class _Ends:
    """The bounds beyond which the data speak against a difference."""

    estimate: float
    total: float
    """Variance of the contrast over samples and seeds."""
    share: float
    """Share of the variance that comes from seeds."""
    freedom: float
    """Degrees of freedom of the variance."""
    samples: Samples

    def at(self, level: float, tails: tuple[float, float]) -> tuple[float, float]:
        """Return the two values whose distance from the estimate is the quantile times their standard error."""
        from scipy.special import stdtrit

        limit = float(stdtrit(self.freedom, (1 + level) / 2))
        few, growth = self.samples.few, self.samples.growth
        lengths = [limit * math.sqrt(self._variance(tail)) for tail in tails]
        if few and isinstance(growth, Rate):
            exact = growth.lengths(level, self.samples.freedom)
            usual = float(stdtrit(self.samples.freedom, (1 + level) / 2)) ** 2 * self.samples.variance
            more = [few * (length**2 - usual) for length in exact]
            lengths = [math.sqrt(max(length**2 + added, 0.0)) for length, added in zip(lengths, more, strict=True)]
        elif few and growth:
            lengths = [self._crossing(level, limit, way, tail) for way, tail in zip((-1, 1), tails, strict=True)]
        return self.estimate - lengths[0], self.estimate + lengths[1]

    def _variance(self, tail: float) -> float:
        return self.total * ((1 - self.share) * tail + self.share) ** 2

    def _more(self, value: float) -> float:
        """Return how much larger the variance over samples is if this value is the true contrast."""
        few, growth = self.samples.few, self.samples.growth
        return few * growth.variance(value) if few and isinstance(growth, Discordance) else 0.0

    def _crossing(self, level: float, limit: float, way: int, tail: float) -> float:
        """Return the distance that equals its quantile times its error, growth at the samples' own quantile."""
        from scipy.optimize import brentq
        from scipy.special import stdtrit

        usual = limit**2 * self._variance(tail)
        squared_quantile = float(stdtrit(self.samples.freedom, (1 + level) / 2)) ** 2

        def beyond(distance: float) -> float:
            return distance**2 - max(usual + squared_quantile * self._more(self.estimate + way * distance), 0.0)

        start = math.sqrt(usual) or 1e-12
        far = start
        while beyond(far) <= 0:
            far *= 2
        near = far / 2 if far > start else 0.0
        return float(brentq(beyond, near, far, xtol=1e-15, rtol=1e-12)) if beyond(near) < 0 else near

    def p_of_none(self, tails: tuple[float, float]) -> float:
        """Return the two-sided p value of a contrast of 0 that agrees with the interval."""
        from scipy.special import stdtr

        if not self.estimate:
            return 1.0
        variance = max(self._variance(tails[0] if self.estimate > 0 else tails[1]) + self._more(0.0), 0.0)
        return float(2 * stdtr(self.freedom, -abs(self.estimate) / math.sqrt(variance))) if variance else 0.0


def _p(estimate: Estimate, samples: Samples, ends: _Ends, total: float) -> float:
    """Return the p value of no difference: the sign-flip test's if few clusters disagree, else the interval's."""
    from scipy.special import stdtr, stdtrit

    usual = ends.p_of_none(samples.tails(estimate.level))
    if samples.few and isinstance(samples.growth, Rate):
        return math.nan
    if not samples.few or math.isnan(samples.by_flips) or not estimate.estimate:
        return usual
    half = float(stdtrit(samples.freedom, samples.by_flips / 2))
    # the error that gives the sign-flip test's p value to the samples alone, and then what seeds add
    flipped = math.inf if half > -1e-9 else total - samples.variance + (estimate.estimate / half) ** 2
    squared = (estimate.estimate / float(stdtrit(estimate.freedom, usual / 2))) ** 2 if 0 < usual < 1 else 0.0
    error = samples.few * flipped + (1 - samples.few) * squared if samples.few < 1 else flipped
    return float(2 * stdtr(estimate.freedom, -abs(estimate.estimate) / math.sqrt(error))) if error > 0 else 0.0


def _agreeing(estimate: Estimate, p: float, by_ends: float) -> Estimate:
    """Return the estimate with its p value, below 1 - level exactly where the interval excludes 0.

    Where p value and interval disagree, the more conservative of the two is kept.

    Args:
        p: p value of no difference; nan for a single score, where any outcome that is not 0 refutes 0.
    """
    outside = not estimate.low <= 0 <= estimate.high
    if math.isnan(p):
        return replace(estimate, p=0.0 if outside else 1.0)
    shown = p < 1 - estimate.level
    if outside and not shown:
        return replace(estimate, p=p, low=min(estimate.low, 0.0), high=max(estimate.high, 0.0))
    if shown and not outside:
        return replace(estimate, p=max(p, by_ends, 1 - estimate.level))
    return replace(estimate, p=p)


def _freedom(share: float, seeds: float, clusters: float) -> float:
    """Return the degrees of freedom of a sum of two estimated variances.

    Satterthwaite's are 1 / (share^2 / seeds + (1 - share)^2 / clusters). With 2 degrees for the seeds and a share near
    0.9 that covers 92 % instead of 95; the factor on the seeds' part, which is 1 at either end, brings it to between 94
    and 96 for every share, from 2 degrees on (computed by quadrature; a test repeats it). With one degree, that of two
    runs of one system, alone or against a single one, it falls to 90.

    Args:
        share: the seeds' part of the variance, as estimated.
        seeds, clusters: degrees of freedom of the two parts; without seeds the first is 0.
    """
    few = 1 + 7 / seeds * share * (1 - share) if seeds else 0.0
    parts = share**2 * few / (seeds or 1.0) + (1 - share) ** 2 / clusters
    return 1 / parts
