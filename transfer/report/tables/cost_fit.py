"""Least-squares fits of scores against the logarithm of costs."""

from collections.abc import Sequence

import numpy as np

FEWEST = 8
"""Points of a fit: with fewer its band, by five degrees of freedom or less, holds nearly everything."""
CURVE_POINTS = 50


def fit_log(points: Sequence[tuple[float, float]]) -> dict[str, list[float]] | None:
    """Return score = intercept + slope * log10(cost) by least squares through (cost, score) points.

    The 95 % interval of the mean, by Student's t, assumes independent points with equal variance about the line.

    Returns:
        Columns `cost score low high` at `CURVE_POINTS` costs; None for fewer than `FEWEST` points or a single cost.
    """
    from scipy.special import stdtrit

    costs, scores = np.array(points, dtype=float).reshape(-1, 2).T
    x = np.log10(costs)
    if len(x) < FEWEST or np.ptp(x) == 0:
        return None
    centre, spread = x.mean(), ((x - x.mean()) ** 2).sum()
    slope = ((x - centre) * (scores - scores.mean())).sum() / spread
    residual = scores - scores.mean() - slope * (x - centre)
    freedom = len(x) - 2
    variance = (residual**2).sum() / freedom
    grid = np.linspace(x.min(), x.max(), CURVE_POINTS)
    line = scores.mean() + slope * (grid - centre)
    margin = stdtrit(freedom, 0.975) * np.sqrt(variance * (1 / len(x) + (grid - centre) ** 2 / spread))
    columns = {"cost": 10**grid, "score": line, "low": line - margin, "high": line + margin}
    return {name: values.tolist() for name, values in columns.items()}
