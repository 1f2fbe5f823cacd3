"""Statistics of several draws of a score: mean, spread, and the smallest difference that as many draws can show."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

POWER, LEVEL, CORRELATION = 0.8, 0.05, 0.8
POINTS = 10_000
"""Number of quantiles that represent a distribution."""


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the statistics of the scores of several draws as plain values for a record.

    `variance` is taken over support sets, on the same test images. `smallest_difference` is that of the function:
    `paired` for two backbones probed on the same support sets, with scores correlated by 0.8, `independent` for
    separate sets. Values are None for a single draw, the difference also for draws that are equal.
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
    """Return the true difference of two means, in standard deviations of a draw, that a t-test shows with this power.

    Two-sided; the power is that of the noncentral t distribution.

    Args:
        n: number of draws of each, at least 2.
        correlation: correlation between the two scores of a draw, below 1, for the paired test; None: the test for
            independent samples of n each.
        power: probability that the test shows the difference.
        level: two-sided level of the test.
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
