"""Largest stable values of a stability map: for each row of the map the largest `x` below the first breakdown."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_high, median_low
from typing import Any

from transfer.records.evidence import Unit
from transfer.report.tables.cell_text import cell_text
from transfer.report.tables.cell_values import Violation
from transfer.report.tables.columns import significant
from transfer.report.tables.stability_map import StabilityMap
from transfer.report.tables.table import RUN, Note, Row, Table


def largest_stable(rows: StabilityMap) -> Table:
    """Return for each panel of a map and each `y` the largest `x`, a number, below the first that breaks down.

    The value is determined for each seed, from the cells that it was run in. The table has the median over seeds:
    unlike the largest `x` at which all seeds train, it does not fall with their number.

    Columns:
        those of `PANEL`, `by` and `y`;
        `largest`: nan where half of the seeds break down at the smallest `x` already;
        `largest_low`, `largest_high`: range of `largest` over the seeds, nan likewise;
        `broken`: median of the first `x` that breaks down; nan where half of the seeds never broke down, so that
        `largest` is only the largest `x` tried;
        `cells`, `seeds`: their numbers;
        `violations`: a `Violation` for each seed that trained above its first breakdown;
        `run`: ids of the runs.
    """
    x, y = rows.x, rows.y
    names = [*rows.panel, y]
    panels: dict[tuple[str, ...], list[Row]] = {}
    for cell in rows.rows:
        panels.setdefault(tuple(cell_text(cell[name]) for name in names), []).append(cell)
    lines = []
    for cells in panels.values():
        same = {name: cells[0][name] for name in names}
        lines.append(same | _edges(sorted(cells, key=lambda cell: float(cell[x])), x, rows.endings))
    notes = [note for note in rows.notes if note.group is not None]
    text = "medians over the seeds, each judged by itself"
    notes.append(Note(text, "largest, broken"))
    return Table.from_rows(lines, significant([*rows.by, y, "largest", "largest_low", "largest_high", "broken"]), notes)


def _edges(cells: Sequence[Row], x: str, endings: Mapping[tuple[str, ...], Mapping[Unit, str]]) -> dict[str, Any]:
    """Return the columns of one row of a map, whose cells are in ascending order of `x`."""
    tried: dict[Unit, list[tuple[float, bool]]] = {}
    for cell in cells:
        for label, status in endings[cell[RUN]].items():
            tried.setdefault(label, []).append((float(cell[x]), status == "completed"))
    edges = {label: _edge(points) for label, points in tried.items()}
    lows, highs = [low for low, _ in edges.values()], [high for _, high in edges.values()]
    return {
        "largest": _median(lows),
        "largest_low": _finite(min(lows)),
        "largest_high": _finite(max(lows)),
        "broken": _median(highs),
        "cells": len(cells),
        "seeds": len(edges),
        "violations": tuple(_violations(tried, edges)),
        RUN: tuple(run for cell in cells for run in cell[RUN]),
    }


def _edge(points: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """Return the largest value below the first breakdown of a seed, and the value of that breakdown.

    Args:
        points: (value, whether the seed trained) in ascending order.

    Without a smaller value the first is minus infinity; without a breakdown the second is infinity.
    """
    broken = next((value for value, trains in points if not trains), math.inf)
    return max((value for value, _ in points if value < broken), default=-math.inf), broken


def _violations(
    tried: Mapping[Unit, Sequence[tuple[float, bool]]], edges: Mapping[Unit, tuple[float, float]]
) -> Iterator[Violation]:
    for label, points in tried.items():
        broken = edges[label][1]
        if above := tuple(value for value, trains in points if trains and value > broken):
            yield Violation(label if len(tried) > 1 else None, above, broken)


def _median(values: Sequence[float]) -> float:
    """Return the median, nan if infinite; of two middle values the geometric mean, or if not positive the mean."""
    low, high = median_low(values), median_high(values)
    if low == high:
        return _finite(low)
    return _finite(low**0.5 * high**0.5 if low > 0 else low + 0.5 * (high - low))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
