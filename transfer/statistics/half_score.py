"""The learning rate at which a score falls half-way to chance: one rule for maps, searches and claims. No torch.

A curve is the score of one seed over ascending rates; a training run that failed has the score of chance.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from statistics import fmean
from typing import Any, NamedTuple

from transfer.core.grouped import values_by_key
from transfer.statistics.intervals import mean_and_deviation
from transfer.statistics.verdicts import UNDECIDED, conclusion

Curve = Sequence[tuple[float, float]]
"""(rate, score) in ascending order of the rates."""


class Fall(NamedTuple):
    """A fall of a curve below a line.

    Attributes:
        above, below: rates of the curve before and after it; 0 if none is above the line, infinite if none is below.
        low, high: bounds of the rate at the line, equal where it is interpolated.
    """

    above: float
    below: float
    low: float
    high: float


def falls(curve: Curve, line: float) -> list[Fall]:
    """Return every fall of a curve below a line right of its best rate, interpolated in the logarithm of the rate.

    A curve that is nowhere above the line fell before its first rate; one that ends above it falls beyond its last.
    """
    best = max(range(len(curve)), key=lambda place: curve[place][1])
    if curve[best][1] <= line:
        return [Fall(0.0, curve[0][0], 0.0, curve[0][0])]
    crossings = []
    for (rate, score), (following, lower) in pairwise(curve[best:]):
        if score > line >= lower:
            share = (score - line) / (score - lower)
            at = rate * (following / rate) ** share if rate else 0.0  # which has no logarithm
            crossings.append(Fall(rate, following, at, at or following))
    last, score = curve[-1]
    return [*crossings, Fall(last, math.inf, last, math.inf)] if score > line else crossings


def stable_limits(rates: Iterable[tuple[float, bool]]) -> Fall:
    """Return the first fall above the smallest rate that trains; what fails below that one does not count.

    Args:
        rates: each rate with whether training works there; without any, nothing is above or below.
    """
    curve = sorted(rates)
    return falls(curve, 0.5)[0] if curve else Fall(0.0, math.inf, 0.0, math.inf)


def half_way(curves: Mapping[Any, Curve], chance: float) -> float:
    """Return the line half-way from chance to the best mean score of the seeds (keys) at one rate."""
    scores = values_by_key(chain.from_iterable(curves.values()))
    return (chance + max(map(fmean, scores.values()))) / 2


def half_score_rates(curves: Mapping[Any, Curve], line: float) -> dict[Any, tuple[float, float]]:
    """Return for each seed the bounds of its half-score rate: from its first to its last fall below the line."""
    crossings = {seed: falls(curve, line) for seed, curve in curves.items()}
    return {seed: (seed_falls[0].low, seed_falls[-1].high) for seed, seed_falls in crossings.items()}


def geometric_mean(bounds: Iterable[tuple[float, float]]) -> float:
    """Return the geometric mean of rates between these bounds; nan where one is not bounded on both sides."""
    ends = [*chain.from_iterable(bounds)]
    return math.exp(fmean(map(math.log, ends))) if all(0 < end < math.inf for end in ends) else math.nan


def half_score_summary(curves: Mapping[Any, Curve], chance: float) -> tuple[float, float, float]:
    """Return the geometric mean of the half-score rates by the curves' own line, with the least and the largest.

    What the rates tried do not reach is nan.
    """
    bounds = [*half_score_rates(curves, half_way(curves, chance)).values()]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    return geometric_mean(bounds), low or math.nan, high if high < math.inf else math.nan


class LogRatio(NamedTuple):
    """log2 of one variant's half-score rates over another's.

    Attributes:
        mean, low, high: mean over the seeds with its 95 % interval by t, of bounds' lower and upper ends; where the
            rate of some seed is not bounded on both sides nan, and the ends of all bounds.
        bounds: ends of each seed.
    """

    mean: float
    low: float
    high: float
    bounds: tuple[tuple[float, float], ...]

    def verdict(self, expect: str, margin: float | None) -> str:
        """Return the verdict on the interval; without a mean every seed has to give the same one."""
        ends = [(self.low, self.high)] if math.isfinite(self.mean) else self.bounds
        verdicts = {conclusion(expect, low, high, margin) for low, high in ends}
        return verdicts.pop() if len(verdicts) == 1 else UNDECIDED


def log_ratio(a: Mapping[Any, tuple[float, float]], b: Mapping[Any, tuple[float, float]]) -> LogRatio:
    """Return the contrast of the half-score rates of the same seeds, two or more, by their bounds."""
    from scipy.special import stdtrit

    bounds = tuple((_log2(a[seed][0], b[seed][1]), _log2(a[seed][1], b[seed][0])) for seed in a)
    lows, highs = zip(*bounds, strict=True)
    if not all(map(math.isfinite, (*lows, *highs))):
        return LogRatio(math.nan, min(lows), max(highs), bounds)
    quantile = float(stdtrit(len(bounds) - 1, 0.975)) / math.sqrt(len(bounds))
    (low, low_sd), (high, high_sd) = mean_and_deviation(lows), mean_and_deviation(highs)
    return LogRatio((low + high) / 2, low - quantile * low_sd, high + quantile * high_sd, bounds)


def _log2(a: float, b: float) -> float:
    """Return log2(a / b), a rate of 0 being below all, and an infinite one above."""
    return -math.inf if a == 0 or b == math.inf else math.inf if b == 0 or a == math.inf else math.log2(a / b)
