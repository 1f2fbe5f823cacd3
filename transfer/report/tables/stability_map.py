"""Stability maps: outcomes of trainings over two fields, usually learning rate and warm-up. Imports no torch.

A map is a table with a row for each cell that was run; `transfer.report.figures.plots` draws it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from typing import Any

from transfer.core.errors import UsageError
from transfer.core.grouped import grouped_by
from transfer.engine.outcome import SCORED
from transfer.records.evidence import SCORE_AT_CHANCE, Arm, Cell, Unit, chance, commonest, ending
from transfer.records.fields import check_fields, order, shown_values, value_of, with_contents
from transfer.records.grouping import grouped
from transfer.records.run_set import StoredRuns
from transfer.report.tables.columns import failed_scores, group_cells, run_ids, significant, unjudged_note
from transfer.report.tables.table import RUN, Column, Endings, Note, Row, Table, cell_text
from transfer.statistics.half_score import half_score_summary, stable_limits
from transfer.statistics.intervals import mean_and_deviation
from transfer.statistics.verdicts import Breakdowns

AXES = ("lr", "warmup_epochs")
"""The axes of a map that nobody asked for."""
MAP_PANEL = ("task", "dataset", "backbone", "pretraining", "protocol")
"""Columns that, with those of `by`, identify the map that a cell belongs to."""
_NAMELESS = ("task", "dataset", "backbone", "pretraining")
"""Columns of a panel whose values need no name."""


@dataclass
class StabilityMap(Table):
    """Table with one row per cell of one or several maps.

    Attributes:
        x, y: names of the columns that are the axes.
        by: names of further columns; there is a map for each combination of their values.
        scores: score of each seed of a cell in percent, that of chance for a training run that failed, by the ids of
            the cell's runs; of the seeds that `seeds` counts.
    """

    x: str = ""
    y: str = ""
    by: tuple[str, ...] = ()
    scores: dict[tuple[str, ...], dict[Unit, float]] = field(default_factory=dict)

    @property
    def panel(self) -> tuple[str, ...]:
        """Columns that identify the map that a cell belongs to."""
        return (*MAP_PANEL, *self.by)

    def panels(self) -> list["tuple[str, StabilityMap]"]:
        """Return each single map under its title: the columns in which maps differ, or its names if it is alone."""
        differing = [name for name in self.panel if len({*map(cell_text, self[name])}) > 1]
        rows = grouped_by(self.rows, lambda row: tuple(cell_text(row[name]) for name in self.panel))
        titles = []
        for cells in rows.values():
            shown = differing or [name for name in _NAMELESS if name != "pretraining"]
            texts = {name: cell_text(cells[0][name]) for name in shown}
            titles.append(" · ".join(text if name in _NAMELESS else f"{name} {text}" for name, text in texts.items()))
        return [(title, replace(self, rows=cells)) for title, cells in zip(titles, rows.values(), strict=True)]


def stability_map(runs: StoredRuns, x: str = AXES[0], y: str = AXES[1], by: Sequence[str] = ()) -> StabilityMap:
    """Return one row per cell: the runs with one `x` and one `y` that differ in their seeds alone.

    Processes that failed leave no record, and are not counted; nor are runs of no epochs, which train nothing.

    Columns:
        those of `MAP_PANEL` and `by`, one map for each of their combinations; `x` and `y` under their own names;
        `metric`, `score`, `score_sd`: mean and standard deviation in percent over the seeds with a score, or where none
        has one over the runs that failed, see `transfer.report.tables.columns.failed_scores`;
        `chance`: score of guessing in percent, where it is known;
        `outcome`: see `commonest`; `score_at_chance` where trainings completed with a score that is not above chance;
        `seeds`: number of seeds, as `transfer.records.evidence.Evidence.variant` counts them;
        `outcomes`: how many seeds ended in each way, and how many have no run, since their pretraining failed; if
        an axis is a field of that pretraining these count as seeds of the cell instead;
        `failed`: number of the seeds judged that failed or are at chance, with the 95 % Wilson interval;
        `run`: ids of the runs.

    The outcome of a seed with several runs, fine-tunings of one pretraining, follows from theirs as `outcome` does.

    Args:
        runs: runs of tasks or of pretraining.
        x, y, by: names of fields, see `transfer.records.fields.value_of`.

    Raises:
        UsageError: a field is unknown or named twice, or no run has both axes.
    """
    names = [x, y, *by]
    check_fields(names, runs.records, runs.exports)
    if len({*names}) < len(names):
        raise UsageError(f"axes of a map must be different fields: {', '.join(names)}")
    trained = (record for record in runs.records if record.options.get("epochs") != 0)
    placed = [record for record in trained if None not in (value_of(record, axis, runs.exports) for axis in (x, y))]
    if not placed:
        raise UsageError(f"no run has both '{x}' and '{y}'")
    hidden = with_contents(("name" if name == "backbone" else name for name in names), placed, runs.exports)
    groups = grouped(placed, runs.exports, hidden)
    rows: list[Row] = []
    scores: dict[tuple[str, ...], dict[Unit, float]] = {}
    cells = [(group, cell) for group in groups for cell in runs.evidence.cells(group.records, [*by, x, y])]
    fields = zip(*(cell.values for _, cell in cells), strict=True)
    for (group, cell), values in zip(cells, zip(*map(shown_values, fields), strict=True), strict=True):
        axes = dict(zip((*by, x, y), values, strict=True))
        row = {"task": group.first.task, **group_cells(group), **axes, **_score(cell.variant)}
        rows.append(row | _counts(cell) | run_ids(cell.variant.records))
        scores[rows[-1][RUN]] = cell.variant.with_breakdowns(group.first.primary)
    rows.sort(key=lambda row: [order(row[name]) for name in (*by, y, x)])
    rows.sort(key=lambda row: [cell_text(row[name]) for name in MAP_PANEL])
    left_out = len(runs) - len(placed)
    notes = [Note(f"runs without {x} or {y}, or without a training, excluded: {left_out}")] if left_out else []
    if any(SCORE_AT_CHANCE in row["statuses"].runs for row in rows):
        text = "completed with a score not above chance by a one-sided binomial test at 99.9 %, which counts as failed"
        notes.append(Note(text, SCORE_AT_CHANCE))
    of_failed = Note("of failed runs only where no other run of the cell has a score", "score")
    notes += [of_failed] if any(map(failed_scores, placed)) else []
    details = [Column("statuses", detail=2), Column("failed", detail=3), Column("score_sd", detail=2)]
    columns = [*significant(names), *details]
    table = StabilityMap.from_rows(rows, columns, notes + unjudged_note(placed))
    return replace(table, x=x, y=y, by=tuple(by), scores=scores)


def _counts(cell: Cell) -> dict[str, Any]:
    endings = tuple(cell.variant.endings.values())
    counts = Counter(endings)
    judged = counts.total() - counts["not_judged"]
    return {
        "outcome": commonest(endings),
        "seeds": len(endings),
        "statuses": Endings(endings, tuple(map(ending, cell.lost))),
        "failed": Breakdowns("", judged - counts["completed"], judged, counts["not_judged"]),
    }


def _score(variant: Arm) -> dict[str, Any]:
    first, metric = variant.records[0], variant.records[0].primary
    guessing, of_failed = chance(first, metric), map(failed_scores, variant.records)
    scores = variant.values(metric) or [scores[metric] for scores in of_failed if metric in scores]
    mean, deviation = mean_and_deviation(scores)
    level = first.scale(metric) * guessing if guessing else None
    return {"metric": metric, "score": mean, "score_sd": deviation, "chance": level}


def largest_stable(rows: StabilityMap) -> Table:
    """Return for each panel of a map and each `y` up to which `x`, a number, training works.

    A value of `x` trains if more than half of the seeds judged there do, whichever these are: they need not be the
    same at every `x`. What fails below the first that trains does not count, as too small a rate fails, too.

    Columns:
        those of `MAP_PANEL`, `by` and `y`;
        `smallest_stable`: the smallest `x` that trains, where smaller ones do not; otherwise nan;
        `largest_stable`, `smallest_failed`: the `x` before and after the first breakdown above it; nan where nothing
            trains, or where none fails, so that `largest_stable` is only the largest `x` tried;
        `half_score`, `half_low`, `half_high`: where the score falls half-way to chance, with the ends of the bounds of
            the seeds that are at every `x`, if any; see `transfer.statistics.half_score.half_score_summary`; nan for a
            single `x`, or if training fails at each;
        `cells`: number of values of `x` with a seed that was judged; `seeds`: the largest number of these in one;
        `violations`: the values of `x` above `smallest_failed` that train;
        `run`: ids of the runs.
    """
    lines = []
    for _, panel in rows.panels():
        ascending = sorted(panel.rows, key=lambda cell: float(cell[rows.x]))
        for cells in grouped_by(ascending, itemgetter(rows.y)).values():
            of_line = {name: cells[0][name] for name in (*rows.panel, rows.y)}
            lines.append(of_line | _limits(cells, rows))
    notes = [Note("a value trains where more than half of the seeds judged do", "largest_stable")]
    notes += [Note("the score is half-way to chance there; low and high: of the seeds", "half_score")]
    numbers = ("smallest_stable", "largest_stable", "smallest_failed", "half_score", "half_low", "half_high")
    return Table.from_rows(lines, significant([*rows.by, rows.y, *numbers]), notes)


def _limits(cells: Sequence[Row], rows: StabilityMap) -> dict[str, Any]:
    """Return the columns of one row of a map, whose cells are in ascending order of `x`."""
    curves: dict[Unit, list[tuple[float, float]]] = {}
    points: list[tuple[float, bool]] = []
    most = 0
    for cell in cells:
        x = float(cell[rows.x])
        statuses = [status for status in cell["statuses"].runs if status != "not_judged"]
        if statuses:
            points.append((x, commonest(statuses) == "completed"))
            most = max(most, len(statuses))
        for unit, score in rows.scores[cell[RUN]].items():
            curves.setdefault(unit, []).append((x, score))
    first = stable_limits(points)
    stable = [x for x, trains in points if trains]
    start = next(iter(stable), math.nan)
    whole = {unit: curve for unit, curve in curves.items() if len(curve) == len(cells)}  # as claims compare them
    scored = any(cell["outcome"] in SCORED for cell in cells)
    curves = (whole or curves) if scored and len(cells) > 1 else {}
    half, low, high = half_score_summary(curves, cells[0]["chance"] or 0.0) if curves else (math.nan,) * 3
    return {
        "smallest_stable": start if points and start > points[0][0] else math.nan,
        "largest_stable": first.above or math.nan,
        "smallest_failed": first.below if first.below < math.inf else math.nan,
        "half_score": half,
        "half_low": low,
        "half_high": high,
        "cells": len(points),
        "seeds": most,
        "violations": tuple(x for x in stable if x > first.below),
        RUN: tuple(chain.from_iterable(cell[RUN] for cell in cells)),
    }
