"""Linear contrasts of variants' scores, with intervals over test samples and seeds. Imports no torch.

`docs/concepts/statistics.md` has the formulas in one place. Shapes: C clusters, K variants, S seeds of a variant.

A score varies over test samples and over seeds, which are crossed: every seed is scored on all samples. The variance of
a contrast is that over clusters of its mean over seeds, and that over seeds, less what both hold (Owen 2007, "The
pigeonhole bootstrap", doi 10.1214/07-AOAS122). The interval is Student's, with Satterthwaite's degrees of freedom
(1946), or Student's over the seeds alone where that is wider. How much seeds matter is the subject of Bouthillier et
al. (2021), arXiv 2103.03098.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.statistics.intervals import LEVEL, Estimate, Method, Scores


def clopper_pearson(successes: int, total: int, level: float) -> tuple[float, float]:
    """Return the interval of a rate (Clopper and Pearson 1934), which covers it at least as often as `level` says."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(successes, total - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, total - successes, 1 - tail)) if successes < total else 1.0
    return low, high


def mcnemar_p(more: int, fewer: int) -> float:
    """Return the two-sided p value of McNemar's exact test.

    Args:
        more, fewer: samples that only the first, and only the second variant has right.
    """
    from scipy.special import bdtr

    if not more + fewer:
        return 1.0
    one_sided = float(bdtr(min(more, fewer), more + fewer, 0.5))
    return min(1.0, 2 * one_sided)


def mcnemar_interval(more: int, fewer: int, total: int, level: float) -> tuple[float, float]:
    """Return the interval of the difference of two rates of the same samples, in agreement with `mcnemar_p`.

    Limits of the rates `more / total` and `fewer / total` by Clopper and Pearson, combined by Newcombe's squares (1998,
    Statistics in Medicine 17:2635) with their correlation as parts of one multinomial. It is drawn out to 0 where the
    test does not show a difference.
    """
    a, b = more / total, fewer / total
    (low_a, high_a), (low_b, high_b) = (clopper_pearson(count, total, level) for count in (more, fewer))
    correlation = -math.sqrt(a * b / ((1 - a) * (1 - b))) if a < 1 and b < 1 else 0.0

    def length(x: float, y: float) -> float:
        return math.sqrt(max(x**2 + y**2 - 2 * correlation * x * y, 0.0))

    low, high = a - b - length(a - low_a, high_b - b), a - b + length(high_a - a, b - low_b)
    if mcnemar_p(more, fewer) >= 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    return max(low, -1.0), min(high, 1.0)


UNKNOWN = (-math.inf, math.inf)
"""Bounds of a score of which nothing is known."""


def contrast(
    variants: Sequence[Scores],
    coefficients: Sequence[float],
    *,
    bounds: tuple[float, float] = UNKNOWN,
    paired: bool = False,
) -> Estimate:
    """Return sum_k c_k m_k with its interval, m_k the mean score of variant k over its seeds.

    Args:
        variants: scores of each variant, on the same clusters.
        coefficients: +1, -1 for a difference; +1, -1, -1, +1 for the interaction of a 2 x 2; 1 for a single score.
        bounds: smallest and largest value of a sample.
        paired: whether the variants have the same seeds in the same order (see `paired_seeds`), so that what such seeds
            share, as the order of the data, cancels.

    Raises:
        ValueError: nothing varies and the score has no bounds, so that an interval cannot be computed.
    """
    scale = np.asarray(coefficients, dtype=np.float64)
    known = _varying(variants, scale, paired=paired)
    reach = float(np.abs(scale).sum() / 2 * (bounds[1] - bounds[0]))
    span, limits = (2 * reach, bounds) if len(variants) == 1 else (reach, (-reach, reach))
    estimate = min(max(known.estimate, limits[0]), limits[1])  # sums round
    known = replace(known, estimate=estimate, discordant=_discordant(variants, scale, bounds))
    counts = _counts(variants, scale, bounds)
    if counts is not None and (len(variants) == 1 or any(counts)):
        return _exact(known, *counts)
    varies = any(error for error, _ in known.errors)
    return _student(known, limits) if varies else _constant(known, span, limits)


def paired_seeds(variants: Sequence[Scores], seeds: Sequence[Sequence[object]]) -> tuple[Sequence[Scores], bool]:
    """Return the variants with the seeds that all share alone, in one order, and whether there are enough of these.

    Args:
        seeds: labels [S_k] of each variant's seeds.
    """
    shared = common_seeds(seeds)
    if not shared:
        return variants, False
    return [variant.of_seeds_at(rows) for variant, rows in zip(variants, shared, strict=True)], True


def common_seeds(seeds: Sequence[Sequence[object]]) -> list[list[int]] | None:
    """Return for each variant the indices of the seeds that all variants share, in one order, or None if too few are.

    Two or more are enough if they are more than half of each variant's seeds, so that a seed whose training failed in
    one variant leaves the pairs of the other seeds.
    """
    if len(seeds) < 2:
        return None
    first, *others = map(list, seeds)
    common = [label for label in first if all(label in labels for labels in others)]
    most = max(map(len, seeds))
    if len(common) < 2 or 2 * len(common) <= most:
        return None
    return [[labels.index(label) for label in common] for labels in (first, *others)]


def _varying(variants: Sequence[Scores], scale: NDArray[Any], *, paired: bool) -> Estimate:
    """Return the contrast with its errors, without an interval."""
    values, influences = [variant.values for variant in variants], [variant.influence for variant in variants]
    sizes = tuple(map(len, values))
    estimate = float(sum(c * scores.mean() for c, scores in zip(scale, values, strict=True)))
    pooled = _weighted(scale, [influence.mean(axis=0) for influence in influences])
    if paired:  # the seeds of all variants are those of their difference
        values, influences, scale = [_weighted(scale, values)], [_weighted(scale, influences)], np.ones(1)
    largest = max(np.abs(variant.values).max(initial=0) for variant in variants)
    rounding = 64 * np.finfo(np.float64).eps * largest * len(variants)
    by_clusters = float((pooled**2).sum())
    by_clusters = by_clusters if math.sqrt(by_clusters) > rounding else 0.0
    several = [k for k, scores in enumerate(values) if len(scores) > 1]
    alone = float(sum(scale[k] ** 2 for k, scores in enumerate(values) if len(scores) == 1))
    # a variant of one seed is taken to vary over seeds as the others do on the average
    weights = np.array([scale[k] ** 2 / len(values[k]) + alone / len(several) for k in several])
    variances = np.array([_over_seeds(values[k], influences[k], rounding) for k in several]).reshape(-1, 2)
    observed, beyond = weights * variances[:, 0], weights * variances[:, 1]
    seeds_df, df = np.array([len(values[k]) - 1 for k in several]), variants[0].df
    errors = [_satterthwaite(np.append(beyond, by_clusters), np.append(seeds_df, df))]
    errors += [_over_seeds_alone(observed, seeds_df)] if observed.any() else []
    estimate = estimate if abs(estimate) > rounding else 0.0  # what floating point leaves between equal predictions
    return Estimate(
        estimate,
        estimate,
        estimate,
        errors=tuple(errors),
        cluster_error=math.sqrt(by_clusters),
        cluster_df=df,
        seed_error=math.sqrt(beyond.sum()) if several else None,
        seeds=sizes,
        paired=paired,
        borrowed=bool(several and alone),
        clusters=len(variants[0].shares),
        effective_clusters=1 / float((variants[0].shares ** 2).sum()),
    )


def _satterthwaite(variances: NDArray[Any], df: NDArray[Any]) -> tuple[float, float]:
    """Return the root of the sum of variances [V], and its degrees of freedom (Satterthwaite 1946) from theirs."""
    total, parts = float(variances.sum()), float((variances**2 / df).sum())
    return math.sqrt(total), total**2 / parts if parts else float(df[-1])


def _over_seeds_alone(variances: NDArray[Any], df: NDArray[Any]) -> tuple[float, float]:
    """Return error and degrees of freedom of Student's test of the seeds' scores, Welch's with several variants.

    Few seeds may show by chance no variance beyond that of test samples; here all of what they show counts. Welch's
    test errs where the variant with fewer seeds varies more: for unequal numbers the quantile is Cochran and Cox's
    (1950, Experimental Designs), the mean of the variants' own, weighted by their variances.
    """
    from scipy.special import stdtridf, stdtrit

    if not np.ptp(df):
        return _satterthwaite(variances, df)
    share = (1 + LEVEL) / 2
    return math.sqrt(variances.sum()), float(stdtridf(share, np.average(stdtrit(df, share), weights=variances)))


def _weighted(scale: NDArray[Any], arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.asarray(sum(c * array for c, array in zip(scale, arrays, strict=True)))


def _over_seeds(values: NDArray[Any], influence: NDArray[Any], rounding: float) -> tuple[float, float]:
    """Return the variance of one run over seeds, and what it is beyond that by test samples alone; 0 or more."""
    observed = float(values.var(ddof=1))
    of_samples = float(((influence - influence.mean(axis=0)) ** 2).sum() / (len(values) - 1))
    observed, beyond = (value if value > rounding**2 else 0.0 for value in (observed, observed - of_samples))
    return observed, beyond


def _discordant(variants: Sequence[Scores], scale: NDArray[Any], bounds: tuple[float, float]) -> int:
    """Return the number of clusters on which variants differ; of a single score those that are not at the nearer bound.

    Of resampled scores it is told by the share of resamples without a difference, exp(-number), while there are any;
    where it is not known, all clusters count.
    """
    clusters = len(variants[0].shares)
    sums = [variant.sums.mean(axis=0) for variant in variants if variant.sums is not None]
    if len(sums) < len(variants):
        drawn = [variant.resampled.mean(axis=0) for variant in variants if variant.resampled is not None]
        if len(drawn) < len(variants):
            return clusters
        without = float((np.abs(_weighted(scale, drawn)) < 1e-12).mean())
        return round(-math.log(without)) if without else clusters
    rounding = 1e-9 * variants[0].shares.max()
    if len(variants) > 1:
        return int((np.abs(_weighted(scale, sums)) > rounding).sum())
    gaps = [np.abs(sums[0] - bound * variants[0].shares) > rounding for bound in bounds if math.isfinite(bound)]
    return min((int(gap.sum()) for gap in gaps), default=clusters)


def _counts(variants: Sequence[Scores], scale: NDArray[Any], bounds: tuple[float, float]) -> tuple[int, ...] | None:
    """Return the counts of samples that are all the data: right ones, or those that one variant alone has right.

    None unless each variant is one run, each cluster one sample, and each sample right or wrong.
    """
    if scale.tolist() not in ([1], [1, -1]) or bounds != (0, 1) or any(len(variant.values) > 1 for variant in variants):
        return None
    right = []
    for variant in variants:
        if variant.sums is None or not variant.single:
            return None
        samples = variant.sums[0] * len(variant.shares)
        rounded = np.rint(samples).astype(np.int64)
        if (np.abs(samples - rounded) > 1e-9).any() or not np.isin(rounded, (0, 1)).all():
            return None
        right.append(rounded)
    if len(right) == 1:
        return (int(right[0].sum()),)
    return int((right[0] > right[1]).sum()), int((right[1] > right[0]).sum())


def _exact(known: Estimate, more: int, fewer: int | None = None) -> Estimate:
    """Return the estimate with the exact interval of counts of samples."""

    def ends(level: float) -> tuple[float, float]:
        total = known.clusters
        return clopper_pearson(more, total, level) if fewer is None else mcnemar_interval(more, fewer, total, level)

    p = float(ends(LEVEL)[0] <= 0) if fewer is None else mcnemar_p(more, fewer)
    return _with_interval(known, ends, p, "exact")


def _constant(known: Estimate, span: float, limits: tuple[float, float]) -> Estimate:
    """Return the estimate of a contrast that nothing varies: the rule of three, span (1 - 0.05^(1/C)) either way.

    Hanley and Lippman-Hand (1983, JAMA 249:1743). `span` is the most by which one cluster can change the contrast.
    """
    if not math.isfinite(span):
        raise ValueError("it is the same on every sample and has no stated bounds, so an interval cannot be computed")
    n, estimate = known.effective_clusters, known.estimate

    def ends(level: float) -> tuple[float, float]:
        reach = span * (1 - (1 - level) ** (1 / n))
        return max(estimate - reach, limits[0]), min(estimate + reach, limits[1])

    return _with_interval(known, ends, max(1 - abs(estimate) / span, 0.0) ** n, "rule of three")


def _student(known: Estimate, limits: tuple[float, float]) -> Estimate:
    """Return the estimate with Student's interval, within the limits that the score cannot leave."""
    from scipy.special import stdtr, stdtrit

    def ends(level: float, errors: Sequence[tuple[float, float]] = known.errors) -> tuple[float, float]:
        half = max(error * float(stdtrit(df, (1 + level) / 2)) for error, df in errors)

        return max(known.estimate - half, limits[0]), min(known.estimate + half, limits[1])

    tails = [float(stdtr(df, -abs(known.estimate) / error)) for error, df in known.errors if error]
    estimate = _with_interval(known, ends, 2 * max(tails), "t")
    return replace(estimate, of_models=ends(LEVEL, [(known.cluster_error, known.cluster_df)]))


def _with_interval(known: Estimate, ends: Callable[[float], tuple[float, float]], p: float, method: Method) -> Estimate:
    """Return the estimate with the interval that `ends` gives for its level, and that of two one-sided tests."""
    low, high = ends(LEVEL)
    inner = ends(2 * LEVEL - 1)
    return replace(known, low=low, high=high, inner=inner, of_models=(low, high), p=p, method=method)
