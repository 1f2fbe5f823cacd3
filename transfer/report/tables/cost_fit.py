"""Lines through scores against the logarithm of costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transfer.report.tables.costs import KIND_OF, CostTable

FEWEST = 4  # points of a fit: three leave its error to one degree of freedom


@dataclass(frozen=True)
class CostFit:
    """score = intercept + slope * log10(cost) by least squares, with 95 % intervals by Student's t.

    `slope` is in points of percent for ten times the cost. The intervals take the points as independent and their
    scatter about the line as equal; seeds' own spread does not enter.
    """

    points: int
    intercept: float
    slope: float
    slope_low: float
    slope_high: float
    curve: dict[str, list[float]]
    """`cost score low high`: the line and the interval of its mean, point by point."""


def cost_fits(rows: CostTable, cost: str = "total_hours") -> dict[tuple[Any, ...], CostFit]:
    """Return a fit for each task, data set, metric, kind of hours and combination of `by` with `FEWEST` points or more.

    Args:
        rows: of `cost_table`.
        cost: one of `COSTS`; points without it, at 0 or without a score are left out.
    """
    kind = [KIND_OF[cost]] if cost in KIND_OF else []
    names = ["task", "dataset", "metric", *kind, *rows.by]
    series: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in rows.rows:
        if row[cost] > 0 and not math.isnan(row["score"]):
            series.setdefault(tuple(row[name] for name in names), []).append((row[cost], row["score"]))
    return {key: fit for key, points in series.items() if (fit := fit_log(points)) is not None}


def fit_log(points: Sequence[tuple[float, float]], level: float = 0.95, steps: int = 50) -> CostFit | None:
    """Return the fit through (cost, score) points; None for fewer than `FEWEST` or all at one cost."""
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
    t = stdtrit(freedom, 0.5 + level / 2)
    grid = np.linspace(x.min(), x.max(), steps)
    line = scores.mean() + slope * (grid - centre)
    margin = t * np.sqrt(variance * (1 / len(x) + (grid - centre) ** 2 / spread))
    half = float(t * math.sqrt(variance / spread))
    columns = {"cost": 10**grid, "score": line, "low": line - margin, "high": line + margin}
    curve = {name: values.tolist() for name, values in columns.items()}
    slope = float(slope)
    return CostFit(len(x), float(scores.mean() - slope * centre), slope, slope - half, slope + half, curve)
