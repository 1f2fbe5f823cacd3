"""Largest stable values of a stability map: for each row of the map the largest `x` below the first breakdown."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from transfer.records.evidence import SCORE_AT_CHANCE, Unit
from transfer.report.tables.columns import significant
from transfer.report.tables.stability_map import BREAKDOWNS, StabilityMap, commonest
from transfer.report.tables.table import RUN, Note, Row, Table

_AT_CHANCE = ("at_chance", SCORE_AT_CHANCE)
_FIRST = {status: place for place, status in enumerate(("completed", *reversed(BREAKDOWNS)))}
"""The order of statuses from the best to the worst."""
Point = tuple[float, str]
"""A value of `x` and how trainings ended there."""


def largest_stable(rows: StabilityMap) -> Table:
    """Return for each panel of a map and each `y` the largest `x`, a number, below the first that fails.

    A value of `x` trains if more than half of the seeds judged there do, whichever these are: they need not be the
    same at every `x`. Values at chance below the first that trains do not count, as too small a rate ends there too.

    Columns:
        those of `PANEL`, `by` and `y`;
        `smallest_stable`: the smallest `x` that trains, where smaller ones are at chance; otherwise nan;
        `largest_stable`: nan where nothing trains before the first breakdown;
        `largest_low`, `largest_high`: `largest_stable` if a value of `x` trains only where all seeds judged do, and
        where any does;
        `smallest_failed`: the first `x` that fails; nan where none does, so that `largest_stable` is only the
        largest `x` tried;
        `cells`: number of values of `x` with a seed that was judged; `seeds`: the largest number of these in one;
        `violations`: the values of `x` above `smallest_failed` that train;
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
    notes = [Note("where more than half of the seeds judged train; low to high: where all do, and where any does")]
    numbers = ("smallest_stable", "largest_stable", "largest_low", "largest_high", "smallest_failed")
    return Table.from_rows(lines, significant([*rows.by, y, *numbers]), notes)


def _edges(cells: Sequence[Row], x: str, endings: Mapping[tuple[str, ...], Mapping[Unit, str]]) -> dict[str, Any]:
    """Return the columns of one row of a map, whose cells are in ascending order of `x`."""
    judged = [(float(cell[x]), [one for one in endings[cell[RUN]].values() if one != "not_judged"]) for cell in cells]
    judged = [(value, statuses) for value, statuses in judged if statuses]
    points = [(value, commonest(statuses)) for value, statuses in judged]
    start, largest, broken = _edge(points)
    above = tuple(value for value, status in points if status == "completed" and value > broken)
    any_trains = [(value, min(statuses, key=_FIRST.__getitem__)) for value, statuses in judged]
    all_train = [(value, max(statuses, key=_FIRST.__getitem__)) for value, statuses in judged]
    return {
        "smallest_stable": _finite(start),
        "largest_stable": _finite(largest),
        "largest_low": _finite(_edge(all_train)[1]),
        "largest_high": _finite(_edge(any_trains)[1]),
        "smallest_failed": _finite(broken),
        "cells": len(points),
        "seeds": max((len(statuses) for _, statuses in judged), default=0),
        "violations": above,
        RUN: tuple(run for cell in cells for run in cell[RUN]),
    }


def _edge(points: Sequence[Point]) -> tuple[float, float, float]:
    """Return the smallest value that trains, the largest below the first breakdown, and that of the latter.

    Args:
        points: in ascending order of `x`.

    The first is minus infinity unless all below it is at chance, the second if nothing trains below the breakdown; the
    third is infinity without a breakdown.
    """
    trains = [value for value, status in points if status == "completed"]
    low = next((value for value, status in points if status not in _AT_CHANCE), math.inf)
    start = trains[0] if trains and low == trains[0] > points[0][0] else -math.inf
    failed = next((value for value, status in points if status != "completed" and value >= start), math.inf)
    return start, max((value for value in trains if value < failed), default=-math.inf), failed


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
