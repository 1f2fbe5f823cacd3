"""Exact intervals of samples that are right or wrong, one by one. Imports no torch."""

import math


def clopper_pearson(successes: int, of: int, level: float) -> tuple[float, float]:
    """Return the interval of a rate (Clopper and Pearson 1934), which covers it at least as often as `level` says."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(successes, of - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, of - successes, 1 - tail)) if successes < of else 1.0
    return low, high


def mcnemar_p(more: int, fewer: int) -> float:
    """Return the two-sided p value of McNemar's exact test.

    Args:
        more, fewer: samples that only the first, and only the second variant has right.
    """
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(more, fewer), more + fewer, 0.5))) if more + fewer else 1.0


def mcnemar_interval(more: int, fewer: int, of: int, level: float) -> tuple[float, float]:
    """Return the interval of the difference of two rates of the same samples, in agreement with `mcnemar_p`.

    Limits of the rates `more / of` and `fewer / of` by Clopper and Pearson, combined by Newcombe's squares (1998,
    Statistics in Medicine 17:2635) with their correlation as parts of one multinomial. It is drawn out to 0 where the
    test does not show a difference.
    """
    a, b = more / of, fewer / of
    (low_a, high_a), (low_b, high_b) = (clopper_pearson(count, of, level) for count in (more, fewer))
    correlation = -math.sqrt(a * b / ((1 - a) * (1 - b))) if a < 1 and b < 1 else 0.0

    def length(x: float, y: float) -> float:
        return math.sqrt(max(x**2 + y**2 - 2 * correlation * x * y, 0.0))

    low, high = a - b - length(a - low_a, high_b - b), a - b + length(high_a - a, b - low_b)
    if mcnemar_p(more, fewer) >= 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    return max(low, -1.0), min(high, 1.0)
