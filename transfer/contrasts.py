"""Linear contrasts of systems' scores, with intervals over test samples and seeds. Imports no torch.

Letters: C clusters, B draws, K systems, S seeds of a system.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from transfer.statistics import LEVEL, Estimate


def contrast(
    scores: Sequence[np.ndarray],
    drawn: Sequence[np.ndarray],
    coefficients: Sequence[float],
    *,
    clusters: int,
    seeds: Sequence[Sequence[object]] | None = None,
    level: float = LEVEL,
) -> Estimate:
    """sum_k c_k m_k with its interval, m_k the mean score of system k over its seeds.

    Scores vary over test samples and over seeds. The first part is that of the bootstrap; the second is Student's,
    from the few scores of each system, since resampling three seeds gives an interval that is much too short. What
    samples and seeds do jointly is in both parts and is taken from the first:

        variance = spread over seeds + (spread over draws - what draws alone spread seeds apart)

    By luck that can be less than the spread over draws. Raised to it, intervals from three seeds that do nothing would
    cover 98 to 99 %. The degrees of freedom are Satterthwaite's (1946), corrected for few seeds, see `_freedom`. The
    crossed components are those of Owen (2007), "The pigeonhole bootstrap", doi 10.1214/07-AOAS122; how much seeds
    matter is the subject of Bouthillier et al. (2021), arXiv 2103.03098.

    Args:
        scores: for each system [S_k], one for each seed.
        drawn: for each system [S_k, B], the same of resampled clusters, draw b the same clusters for all.
        coefficients: +1, -1 for a difference; +1, -1, -1, +1 for the interaction of a 2 x 2.
        clusters: how many were resampled.
        seeds: labels [S_k] for each system. With the same ones for all, seeds are taken in pairs: what they share, as
            the order of the data, cancels. Otherwise, and with two seeds, which would leave one degree of freedom, the
            systems' seeds are independent.

    Raises:
        ValueError: fewer than two clusters, or a draw without a score.
    """
    if clusters < 2:
        raise ValueError(f"an interval needs at least 2 clusters, not {clusters}")
    if not all(np.isfinite(one).all() for one in (*scores, *drawn)) or min(one.shape[1] for one in drawn) < 2:
        raise ValueError("a score, or a draw of one, is not a number")
    weights = np.asarray(coefficients, dtype=np.float64)
    sizes = tuple(len(one) for one in scores)
    # equal predictions differ by nothing, not by what floating point leaves of them
    dust = (
        64 * np.finfo(np.float64).eps * sum(abs(c) * np.abs(one).max() for c, one in zip(weights, drawn, strict=True))
    )
    pairs = _pairs(weights, scores, drawn, seeds or (), dust)
    if pairs:
        weights, scores, drawn = np.ones(1), [pairs[0]], [pairs[1]]
    estimate = float(sum(c * one.mean() for c, one in zip(weights, scores, strict=True)))
    spread = np.sum([c * one.mean(axis=0) for c, one in zip(weights, drawn, strict=True)], axis=0)
    spread -= spread.mean()
    spread[np.abs(spread) <= dust] = 0.0
    estimate = 0.0 if abs(estimate) <= dust else estimate
    parts = _Seeds.of(weights, scores, drawn)
    found = _combined(estimate, spread, parts, clusters, level)
    return replace(found, seeds=sizes, paired=pairs is not None, borrowed=parts.borrowed)


def _pairs(
    weights: np.ndarray,
    scores: Sequence[np.ndarray],
    drawn: Sequence[np.ndarray],
    seeds: Sequence[Sequence[object]],
    dust: float,
) -> tuple[np.ndarray, np.ndarray] | None:
    """The contrast [S] within each seed, and of each draw [S, B]; None where seeds are not to be taken in pairs."""
    if len(seeds) < 2 or len(seeds[0]) < 2 or any(set(one) != set(seeds[0]) for one in seeds):
        return None
    orders = [[list(one).index(label) for label in seeds[0]] for one in seeds]
    score, draw = (
        np.sum([c * one[order] for c, one, order in zip(weights, part, orders, strict=True)], axis=0)
        for part in (scores, drawn)
    )
    equal = np.abs(draw).max() <= dust
    return (np.where(equal, 0.0, score), np.where(equal, 0.0, draw)) if equal or len(score) > 2 else None


@dataclass(frozen=True)
class _Seeds:
    """The variance of a contrast over seeds; `freedom` is 0 with one seed each."""

    variance: float
    by_draws: float
    """What resampling the samples alone adds to it"""
    freedom: float
    borrowed: bool

    @classmethod
    def of(cls, weights: np.ndarray, scores: Sequence[np.ndarray], drawn: Sequence[np.ndarray]) -> "_Seeds":
        several = [place for place, one in enumerate(scores) if len(one) > 1]
        if not several:
            return cls(0.0, 0.0, 0.0, False)
        single = sum(weights[place] ** 2 for place, one in enumerate(scores) if len(one) == 1)
        variances, shares, freedoms = [], [], []
        for place in several:
            one, size = scores[place], len(scores[place])
            factor = weights[place] ** 2 / size + single / len(several)
            variances.append(factor * float(np.var(one, ddof=1)))
            apart = np.var(drawn[place] - one[:, None], axis=0, ddof=1)
            shares.append(factor * float(apart.mean()))
            freedoms.append(size - 1)
        return cls(sum(variances), sum(shares), _freedom_of_sum(variances, freedoms), bool(single))


def _freedom_of_sum(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    """Degrees of freedom of a sum of independent estimates of variances of about one size.

    For few seeds Satterthwaite's are too few on the average, those of Welch (1947) too many where one variance is all.
    A mean of both covers 94 to 96 % with three seeds each, up to variances 4 times one another.
    """
    total, squares = sum(variances), np.square(variances)
    if not total:
        return float(sum(freedoms))
    satterthwaite = total**2 / float((squares / freedoms).sum())
    welch = total**2 / float((squares / (np.asarray(freedoms) + 2)).sum()) - 2
    return 3 / (1 / satterthwaite + 2 / welch)


def _combined(estimate: float, spread: np.ndarray, seeds: _Seeds, clusters: int, level: float) -> Estimate:
    """The estimate but for what it says of its systems. `spread` [B]: the draws less their mean."""
    from scipy.special import ndtri, stdtr, stdtrit

    deviation = float(spread.std())
    by_clusters = deviation**2 * clusters / (clusters - 1)
    rest = max(by_clusters - seeds.by_draws, 0.0) if seeds.freedom else by_clusters
    total = rest + seeds.variance
    known = Estimate(
        estimate=estimate,
        low=estimate,
        high=estimate,
        level=level,
        p=float(estimate == 0),
        error=math.sqrt(total),
        cluster_error=math.sqrt(by_clusters),
        seed_error=math.sqrt(max(seeds.variance - seeds.by_draws, 0.0)) if seeds.freedom else None,
        clusters=clusters,
        draws=len(spread),
    )
    if not total:
        return known
    share = seeds.variance / total
    freedom = _freedom(share, seeds.freedom, clusters - 1)
    # each side is as long as the draws say, in so far as it is the draws that matter
    ends = np.abs(np.quantile(spread, [(1 - level) / 2, (1 + level) / 2]))
    tails = ends / (deviation * ndtri((1 + level) / 2)) if deviation else np.ones(2)
    below, above = (known.error * ((1 - share) * tails + share)).tolist()
    limit = float(stdtrit(freedom, (1 + level) / 2))
    facing = below if estimate > 0 else above
    p = float(2 * stdtr(freedom, -abs(estimate) / facing)) if facing else known.p
    return replace(known, low=estimate - limit * below, high=estimate + limit * above, p=p, freedom=freedom)


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
