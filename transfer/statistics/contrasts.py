"""Linear contrasts of systems' scores, with intervals over test samples and seeds. Imports no torch.

`docs/concepts/statistics.md` has the formulas in one place. Letters: B draws, C clusters, K systems,
S seeds of a system.
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
    """sum_k c_k m_k with its interval, m_k the mean score of system k over its seeds.

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

    Args:
        scores: for each system [S_k], one for each seed.
        drawn: for each system [S_k, B], the same of resampled clusters, draw b the same clusters for all. None are
            needed where `parts` say that few clusters disagree.
        coefficients: +1, -1 for a difference; +1, -1, -1, +1 for the interaction of a 2 x 2.
        clusters: how many were resampled.
        parts: for each system. Without them only what many clusters allow is made.
        bounds: of a sample's value.
        seeds: labels [S_k] for each system; without them they may be the same. What most have in common is taken in
            pairs, see `in_pairs`: what such seeds share, as the order of the data, cancels. Two seeds would leave one
            degree of freedom: of these the means are those of the same seeds, and the systems' spreads independent.

    Raises:
        ValueError: fewer than two clusters, or a score, or a draw of one, that is no number.
    """
    if clusters < 2:
        raise ValueError(f"an interval needs at least 2 clusters, not {clusters}")
    if not all(np.isfinite(one).all() for one in (*scores, *drawn)):
        raise ValueError("a score, or a draw of one, is not a number")
    if parts is not None and not all(np.isfinite(one.sums).all() for one in parts):
        raise ValueError("what a cluster adds to a score is not a number")
    weights = np.asarray(coefficients, dtype=np.float64)
    given = WeightedSystems(weights, list(scores), list(drawn), None if parts is None else list(parts))
    used = common_seeds(seeds) if seeds else None
    dust = given.dust
    mean = given if used is None else given.of(used)
    apart, paired = given, False
    if used is not None and (len(used[0]) > 2 or mean.equal_in_pairs(dust)):
        mean = apart = mean.within_pairs(dust)
        paired = True
    single = sum(map(abs, coefficients)) == abs(sum(coefficients))
    samples = Samples.of(mean, clusters, bounds, single, sum(map(abs, coefficients)), dust)
    varying = Seeds.of(apart, [len(one) for one in mean.scores], not seeds or used is not None)
    found = _combined(mean.estimate(dust), samples, varying, clusters, level)
    sizes = tuple(len(one) for one in (used or scores))
    found = replace(found, seeds=sizes, paired=paired, borrowed=varying.borrowed, draws=drawn[0].shape[1])
    if single and bounds != UNKNOWN:
        return replace(found, low=max(found.low, bounds[0]), high=min(found.high, bounds[1]))
    return found


def with_more_seeds(estimate: Estimate, more: int) -> Estimate:
    """As it would be with so many more seeds of each system, varying as these do, on the same samples."""
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
    """The estimate but for what it says of its systems."""
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
    found = replace(known, low=low, high=high, inner=inner, freedom=freedom)
    return _agreeing(found, _p(found, samples, ends, total), ends.p_of_none(samples.tails(level)))


@dataclass(frozen=True)
class _Ends:
    """The bounds beyond which the data speak against a difference."""

    estimate: float
    total: float
    """Variance"""
    share: float
    """Of the seeds"""
    freedom: float
    samples: Samples

    def at(self, level: float, tails: tuple[float, float]) -> tuple[float, float]:
        """The values next to the estimate whose distance from it is the quantile times their standard error."""
        from scipy.special import stdtrit

        limit = float(stdtrit(self.freedom, (1 + level) / 2))
        few, growth = self.samples.few, self.samples.growth
        lengths = [limit * math.sqrt(self._variance(tail)) for tail in tails]
        if few and isinstance(growth, Rate):
            own = growth.lengths(level, self.samples.freedom)
            usual = float(stdtrit(self.samples.freedom, (1 + level) / 2)) ** 2 * self.samples.variance
            more = [few * (length**2 - usual) for length in own]
            lengths = [math.sqrt(max(length**2 + one, 0.0)) for length, one in zip(lengths, more, strict=True)]
        elif few and growth:
            lengths = [self._crossing(level, limit, way, tail) for way, tail in zip((-1, 1), tails, strict=True)]
        return self.estimate - lengths[0], self.estimate + lengths[1]

    def _variance(self, tail: float) -> float:
        return self.total * ((1 - self.share) * tail + self.share) ** 2

    def _more(self, value: float) -> float:
        """By which a true value raises the variance of the samples' part."""
        few, growth = self.samples.few, self.samples.growth
        return few * growth.variance(value) if few and isinstance(growth, Discordance) else 0.0

    def _crossing(self, level: float, limit: float, way: int, tail: float) -> float:
        """Where the distance is the quantile times the error, what samples would add to it by their own quantile."""
        from scipy.optimize import brentq
        from scipy.special import stdtrit

        usual = limit**2 * self._variance(tail)
        own = float(stdtrit(self.samples.freedom, (1 + level) / 2)) ** 2

        def beyond(distance: float) -> float:
            return distance**2 - max(usual + own * self._more(self.estimate + way * distance), 0.0)

        start = math.sqrt(usual) or 1e-12
        far = start
        while beyond(far) <= 0:
            far *= 2
        near = far / 2 if far > start else 0.0
        return float(brentq(beyond, near, far, xtol=1e-15, rtol=1e-12)) if beyond(near) < 0 else near

    def p_of_none(self, tails: tuple[float, float]) -> float:
        """Two-sided, of the value 0, as the ends have it."""
        from scipy.special import stdtr

        if not self.estimate:
            return 1.0
        variance = max(self._variance(tails[0] if self.estimate > 0 else tails[1]) + self._more(0.0), 0.0)
        return float(2 * stdtr(self.freedom, -abs(self.estimate) / math.sqrt(variance))) if variance else 0.0


def _p(found: Estimate, samples: Samples, ends: _Ends, total: float) -> float:
    """Of no difference: by the sign-flip test as far as few clusters disagree, otherwise by the interval."""
    from scipy.special import stdtr, stdtrit

    usual = ends.p_of_none(samples.tails(found.level))
    if samples.few and isinstance(samples.growth, Rate):
        return math.nan
    if not samples.few or math.isnan(samples.by_flips) or not found.estimate:
        return usual
    half = float(stdtrit(samples.freedom, samples.by_flips / 2))
    # the error that gives the sign-flip test's p value to the samples alone, and then what seeds add
    flipped = math.inf if half > -1e-9 else total - samples.variance + (found.estimate / half) ** 2
    squared = (found.estimate / float(stdtrit(found.freedom, usual / 2))) ** 2 if 0 < usual < 1 else 0.0
    error = samples.few * flipped + (1 - samples.few) * squared if samples.few < 1 else flipped
    return float(2 * stdtr(found.freedom, -abs(found.estimate) / math.sqrt(error))) if error > 0 else 0.0


def _agreeing(found: Estimate, p: float, by_ends: float) -> Estimate:
    """With a p value below 1 - level where the interval leaves 0 out, and only there: the more careful one holds.

    Args:
        p: nan of a single score; that it is 0 is refuted by any outcome that is not.
    """
    outside = not found.low <= 0 <= found.high
    if math.isnan(p):
        return replace(found, p=0.0 if outside else 1.0)
    shown = p < 1 - found.level
    if outside and not shown:
        return replace(found, p=p, low=min(found.low, 0.0), high=max(found.high, 0.0))
    if shown and not outside:
        return replace(found, p=max(p, by_ends, 1 - found.level))
    return replace(found, p=p)


def _freedom(share: float, seeds: float, clusters: float) -> float:
    """Degrees of freedom of a sum of two estimated variances.

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
