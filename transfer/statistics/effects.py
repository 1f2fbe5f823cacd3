"""Effects of claims with their 95 % intervals, and what these conclude by a rule that was stated before. No torch."""

import math
from collections.abc import Sequence

from transfer.statistics.intervals import LEVEL, wilson

SUPPORT, NO_EFFECT, CONTRADICTION, UNDECIDED = VERDICTS = (
    "support",
    "no relevant effect",
    "contradiction",
    "undecided",
)


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
        ValueError: fewer than four pairs, or all values of one side are equal.
    """
    from scipy.special import ndtri
    from scipy.stats import spearmanr

    n = len(x)
    if n < 4 or len({*x}) < 2 or len({*y}) < 2:
        raise ValueError(f"a rank correlation needs four runs with different values, not {n}")
    rho = float(spearmanr(x, y).statistic)
    most = 1 - 12 / (n * (n**2 - 1))
    known = max(-most, min(most, rho))
    half = float(ndtri((1 + LEVEL) / 2)) * math.sqrt((1 + known**2 / 2) / (n - 3))
    low, high = math.tanh(math.atanh(known) - half), math.tanh(math.atanh(known) + half)
    return rho, min(low, rho), max(high, rho)


def conclusion(expect: str, low: float, high: float, margin: float | None, *, enough: bool = True) -> str:
    """Return the verdict on an effect, as `docs/guide/claims.md` states it.

    Args:
        expect: "a > b", "> 0", "a >= b", "a = b" and their reverses, about the effect of a less b.
        low, high: the 95 % interval of the effect.
        margin: the smallest relevant effect; None if there is none.
        enough: whether enough samples differ to call an effect smaller than the margin.
    """
    if "<" in expect:
        low, high = -high, -low
    margin = margin or 0.0
    below, within = high <= -margin, enough and -margin < low and high < margin
    if expect == "a = b":
        return SUPPORT if within else CONTRADICTION if below or low >= margin else UNDECIDED
    if "=" in expect:
        return SUPPORT if enough and low > -margin else CONTRADICTION if below else UNDECIDED
    return NO_EFFECT if within else SUPPORT if low > 0 else CONTRADICTION if below else UNDECIDED
