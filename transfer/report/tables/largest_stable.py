"""The largest stable values of a stability map: for each row of it the largest `x` below the first that breaks down."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backbones.errors import UsageError
from transfer.records.evidence import Unit
from transfer.report.tables.cell_text import cell_text
from transfer.report.tables.cell_values import Violation
from transfer.report.tables.columns import significant
from transfer.report.tables.stability_map import StabilityMap
from transfer.report.tables.table import RUN, Note, NoteKind, Row, Table, is_number


def largest_stable(rows: StabilityMap, tolerated: float = 0.5) -> Table:
    """Return, for each panel of a map and each `y`, the largest `x` below the first that breaks down.

    Each seed has such a value of its own, by the cells that it was run in; what is given is their median, which, unlike
    the largest `x` that all seeds bear, does not fall with their number.

    Columns: those of `PANEL`, `by` and `y`; `largest` (nan where for half of the seeds the smallest `x` breaks down
    already), `largest_low` and `largest_high` (its range over the seeds; nan likewise); `broken` (the median of the
    first `x` that breaks down; nan where for half of the seeds none did, so that `largest` is only the largest tried);
    `cells`; `seeds`; `violations` (of each seed that trained at values above its first breakdown all the same); `run`
    (ids).

    Args:
        rows: the map, `x` a number.
        tolerated: share of the seeds whose own value may be smaller: another quantile than the median. 0 is what all of
            them bear.

    Raises:
        UsageError: `x` is no number everywhere.
    """
    x, y = rows.x, rows.y
    if not all(map(is_number, rows[x])):
        raise UsageError(f"the largest stable value is asked of '{x}', which is not a number in every run")
    names = [*rows.panel, y]
    panels: dict[tuple[str, ...], list[Row]] = {}
    for cell in rows.rows:
        panels.setdefault(tuple(cell_text(cell[name]) for name in names), []).append(cell)
    lines = []
    for cells in panels.values():
        same = {name: cells[0][name] for name in names}
        lines.append(same | _edges(sorted(cells, key=lambda cell: float(cell[x])), x, rows.endings, tolerated))
    notes = [note for note in rows.notes if note.kind in (NoteKind.COMPARABILITY, NoteKind.TASK_VERSION)]
    which = "medians" if tolerated == 0.5 else f"{tolerated:g} quantiles"
    text = f"{which} over the seeds, each judged by itself"
    notes.append(Note(NoteKind.READING, text, "largest, broken", columns=("largest", "broken")))
    return Table.of(lines, significant([*rows.by, y, "largest", "largest_low", "largest_high", "broken"]), notes)


def _edges(
    cells: Sequence[Row], x: str, endings: Mapping[tuple[str, ...], Mapping[Unit, str]], tolerated: float
) -> dict[str, Any]:
    """Of the cells of one row of a map, in rising `x`."""
    tried: dict[Unit, list[tuple[float, bool]]] = {}
    for cell in cells:
        for label, status in endings[cell[RUN]].items():
            tried.setdefault(label, []).append((float(cell[x]), status == "completed"))
    edges = {label: _edge(points) for label, points in tried.items()}
    lows, highs = [low for low, _ in edges.values()], [high for _, high in edges.values()]
    return {
        "largest": _quantile(lows, tolerated),
        "largest_low": _finite(min(lows)),
        "largest_high": _finite(max(lows)),
        "broken": _quantile(highs, tolerated),
        "cells": len(cells),
        "seeds": len(edges),
        "violations": tuple(_violations(tried, edges)),
        RUN: tuple(run for cell in cells for run in cell[RUN]),
    }


def _edge(points: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """Of one seed, in rising order: the largest value below its first breakdown, and that; infinite without one."""
    broken = next((at for at, trains in points if not trains), math.inf)
    return max((at for at, _ in points if at < broken), default=-math.inf), broken


def _violations(
    tried: Mapping[Unit, Sequence[tuple[float, bool]]], edges: Mapping[Unit, tuple[float, float]]
) -> Iterator[Violation]:
    for label, points in tried.items():
        broken = edges[label][1]
        if above := tuple(at for at, trains in points if trains and at > broken):
            yield Violation(label if len(tried) > 1 else None, above, broken)


def _quantile(values: Sequence[float], share: float) -> float:
    """Between two values on a logarithmic scale, on a plain one where they are not positive; nan where it is open."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high, part = ordered[math.floor(place)], ordered[math.ceil(place)], place % 1
    if low == high or not part:
        return _finite(low)
    if low > 0:
        return _finite(low ** (1 - part) * high**part)
    return _finite(low + part * (high - low))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
