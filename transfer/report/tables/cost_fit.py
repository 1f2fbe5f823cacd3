"""Least-squares fits of scores against the logarithm of costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 4  # points of a fit: three would leave one degree of freedom for its error
CURVE_POINTS = 50


@dataclass(frozen=True)
class CostFit:
    """score = intercept + slope * log10(cost) by least squares, with 95 % intervals by Student's t.

    `slope` is in percentage points per tenfold cost. The intervals assume independent points with equal variance about
    the line; the spread over seeds is not used.
    """

    points: int
    intercept: float
    slope: float
    slope_low: float
    slope_high: float
    curve: dict[str, list[float]]
    """Columns `cost score low high`: the line and the interval of its mean at `CURVE_POINTS` costs."""


def fit_log(points: Sequence[tuple[float, float]]) -> CostFit | None:
    """Return the fit through (cost, score) points; None for fewer than `FEWEST` points or a single cost."""
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
    t = stdtrit(freedom, 0.975)
    grid = np.linspace(x.min(), x.max(), CURVE_POINTS)
    line = scores.mean() + slope * (grid - centre)
    margin = t * np.sqrt(variance * (1 / len(x) + (grid - centre) ** 2 / spread))
    half = float(t * math.sqrt(variance / spread))
    columns = {"cost": 10**grid, "score": line, "low": line - margin, "high": line + margin}
    curve = {name: values.tolist() for name, values in columns.items()}
    slope = float(slope)
    return CostFit(len(x), float(scores.mean() - slope * centre), slope, slope - half, slope + half, curve)
