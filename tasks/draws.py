"""What several draws of a score say: mean, spread, and the smallest difference that as many draws can show."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

POWER, LEVEL, CORRELATION = 0.8, 0.05, 0.8
POINTS = 10_000
"""Quantiles that stand for a distribution."""


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Plain values for a record, from the score of each draw.

    `variance` is that between support sets, on the same test images. `smallest_difference`: see there; `paired` takes
    two backbones that were probed on the same support sets, their scores correlated by 0.8, `independent` sets of
    their own. None where one draw, or draws that happen to be equal, say nothing.
    """
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return {"draws": list(values), "mean": mean, "standard_error": None, "variance": None}
    variance = float(np.var(values, ddof=1))
    deviation = math.sqrt(variance)
    differences = {
        "paired": deviation * smallest_difference(n, correlation=CORRELATION),
        "independent": deviation * smallest_difference(n),
        "power": POWER,
        "level": LEVEL,
        "correlation": CORRELATION,
    }
    return {
        "draws": list(values),
        "mean": mean,
        "standard_error": deviation / math.sqrt(n),
        "variance": variance,
        "smallest_difference": differences if variance else None,
    }


@lru_cache
def smallest_difference(
    n: int, *, correlation: float | None = None, power: float = POWER, level: float = LEVEL
) -> float:
    """The true difference of two means, in standard deviations of a draw, that a t-test shows with this power.

    Two-sided; the power is that of the noncentral t distribution.

    Args:
        n: draws of each, at least 2.
        correlation: between the two scores of a draw, below 1, for the paired test; None: the test for independent
            samples of n each.
    """
    # T = (Z + shift) / S with S^2 = chi^2 / freedom: beyond the critical values lies, given S, a share that the normal
    # distribution has; its mean over the quantiles of S is the power. (scipy's noncentral t gives nan in its far tail.)
    from scipy.optimize import brentq
    from scipy.special import gammaincinv, ndtr, stdtrit

    paired = correlation is not None
    freedom = n - 1 if paired else 2 * n - 2
    error = math.sqrt(2 * (1 - (correlation or 0.0)) / n)
    quantiles = (np.arange(POINTS) + 0.5) / POINTS
    limits = stdtrit(freedom, 1 - level / 2) * np.sqrt(2 * gammaincinv(freedom / 2, quantiles) / freedom)

    def lacking(shift: float) -> float:
        return float((ndtr(shift - limits) + ndtr(-limits - shift)).mean()) - power

    enough = 1.0
    while lacking(enough) < 0:
        enough *= 2
    return error * float(brentq(lacking, 0.0, enough))
