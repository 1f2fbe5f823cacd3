"""Largest stable values of a stability map: for each row of the map the largest `x` below the first breakdown."""

import math
from collections.abc import Mapping, Sequence
from statistics import median_high, median_low
from typing import Any

from transfer.records.evidence import SCORE_AT_CHANCE, Unit
from transfer.report.tables.cell_values import Violation
from transfer.report.tables.columns import significant
from transfer.report.tables.stability_map import StabilityMap
from transfer.report.tables.table import RUN, Note, Row, Table

_AT_CHANCE = ("at_chance", SCORE_AT_CHANCE)
Point = tuple[float, str]
"""A value of `x` and how a seed ended there."""


def largest_stable(rows: StabilityMap) -> Table:
    """Return for each panel of a map and each `y` the largest `x`, a number, below the first that breaks down.

    The value is determined for each seed, from the cells that it was run and judged in. The table has the median over
    seeds: unlike the largest `x` at which all seeds train, it does not fall with their number. A seed that is at chance
    at its smallest `x`, as trainings at too small a rate are, is followed from the first at which it trains.

    Columns:
        those of `PANEL`, `by` and `y`;
        `smallest_stable`: the smallest `x` at which seeds train, where smaller ones are at chance; otherwise nan;
        `largest_stable`: nan where half of the seeds do not train at any `x` before the first breakdown;
        `largest_low`, `largest_high`: range of `largest_stable` over the seeds, nan likewise;
        `smallest_failed`: median of the first `x` that breaks down; nan where half of the seeds never broke down, so
        that `largest_stable` is only the largest `x` tried;
        `cells`, `seeds`: their numbers, without those that were not judged;
        `violations`: a `Violation` for each seed that trained above its first breakdown;
        `run`: ids of the runs.
    """
    x, y = rows.x, rows.y
    lines = []
    for _, panel in rows.panels():
        by_y: dict[Any, list[Row]] = {}
        for cell in sorted(panel.rows, key=lambda cell: float(cell[x])):
            by_y.setdefault(cell[y], []).append(cell)
        for cells in by_y.values():
            lines.append({name: cells[0][name] for name in (*rows.panel, y)} | _edges(cells, x, rows.endings))
    notes = [note for note in rows.notes if note.group is not None]
    notes.append(Note("medians over the seeds, each judged by itself", "largest_stable, smallest_failed"))
    numbers = ("smallest_stable", "largest_stable", "largest_low", "largest_high", "smallest_failed")
    return Table.from_rows(lines, significant([*rows.by, y, *numbers]), notes)


def _edges(cells: Sequence[Row], x: str, endings: Mapping[tuple[str, ...], Mapping[Unit, str]]) -> dict[str, Any]:
    """Return the columns of one row of a map, whose cells are in ascending order of `x`."""
    seeds: dict[Unit, list[Point]] = {}
    for cell in cells:
        for label, status in endings[cell[RUN]].items():
            if status != "not_judged":
                seeds.setdefault(label, []).append((float(cell[x]), status))
    edges = {label: _edge(points) for label, points in seeds.items()}
    starts, lows, highs = zip(*edges.values(), strict=True) if edges else ((), (), ())
    return {
        "smallest_stable": _median(starts),
        "largest_stable": _median(lows),
        "largest_low": _finite(min(lows, default=math.nan)),
        "largest_high": _finite(max(lows, default=math.nan)),
        "smallest_failed": _median(highs),
        "cells": len({value for points in seeds.values() for value, _ in points}),
        "seeds": len(edges),
        "violations": tuple(
            Violation(label if len(seeds) > 1 else None, above, edges[label][2])
            for label, points in seeds.items()
            if (above := tuple(value for value, status in points if status == "completed" and value > edges[label][2]))
        ),
        RUN: tuple(run for cell in cells for run in cell[RUN]),
    }


def _edge(points: Sequence[Point]) -> tuple[float, float, float]:
    """Return the smallest value at which a seed trains, the largest below its first breakdown, and that of the latter.

    Args:
        points: in ascending order of `x`.

    The first is minus infinity unless the seed is at chance below it, the second if the seed trains nowhere below the
    breakdown; the third is infinity without a breakdown.
    """
    trains = [value for value, status in points if status == "completed"]
    low = next((value for value, status in points if status not in _AT_CHANCE), math.inf)
    start = trains[0] if trains and low == trains[0] > points[0][0] else -math.inf
    failed = next((value for value, status in points if status != "completed" and value >= start), math.inf)
    return start, max((value for value in trains if value < failed), default=-math.inf), failed


def _median(values: Sequence[float]) -> float:
    """Return the median, nan if infinite; of two middle values the geometric mean, or if not positive the mean."""
    if not values:
        return math.nan
    low, high = median_low(values), median_high(values)
    if low == high:
        return _finite(low)
    return _finite(low**0.5 * high**0.5 if low > 0 else low + 0.5 * (high - low))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
