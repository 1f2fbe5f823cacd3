"""Scores of each class, with the intervals of the configuration's score: over resampled test images and seeds."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from transfer.comparison.paired_intervals import read_outcomes
from transfer.core.errors import shortened
from transfer.records.per_sample import RESAMPLED, scoring
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.tables.columns import group_cells, interval, looked_for, run_ids, score_columns, without_unused
from transfer.report.tables.table import Note, Table
from transfer.task import Outcomes, load_task

OfClass = tuple[Record, Outcomes]
"""A run's record with the scores of a class in the place of all, and its outcomes with their resamples."""


def class_table(runs: RunSet, names: Sequence[str] = ()) -> Table:
    """Return a row for each configuration and class: mean scores over seeds in percent, with 95 % intervals.

    Configurations are named as in `summary`. Resamples are those of the score over all classes; an interval is from
    those in which the class occurs. The table is empty if no task of the runs has scores by class.

    Args:
        runs: runs of one task.
        names: the scores, by default those that readers look for.

    Raises:
        UserError: the results of a run cannot be read.
    """
    rows: list[dict[str, Any]] = []
    notes: dict[Note, None] = {}
    for group in runs.groups:
        scores = names or looked_for(group.first)
        titles, classes = group.first.details.get("classes", {}), defaultdict[str, list[OfClass]](list)
        for run in (runs.by_id[record.run_id] for record in group.records if record.scores):
            for one, of_class in _of_classes(run, scores).items():
                classes[titles.get(one, one)].append(of_class)
        if classes and (absent := sorted({*titles.values()} - {*classes})):
            notes[Note(f"not in the test images, so no score: {shortened(absent, 3)}", group.dataset)] = None
        for title, members in classes.items():
            row: dict[str, Any] = {"task": group.first.task, **group_cells(group), "class": title}
            for score in scores:
                if records := [record for record, _ in members if score in record.scores]:
                    row[score] = fmean(record.shown(score) for record in records)
                    ends = interval(runs, records, score, {record.run_id: outcomes for record, outcomes in members})
                    row[f"{score} low"], row[f"{score} high"] = ends
            rows.append(row | run_ids(group.records))
    return without_unused(Table.from_rows(rows, score_columns(runs.records), notes))


def _of_classes(run: Run, scores: Sequence[str]) -> dict[str, OfClass]:
    """Return what the table needs of a run, by the ids of the classes."""
    outcomes, record = read_outcomes(run), run.record
    with scoring():
        found = load_task(record.task).by_class([name for name in scores if name in record.scores], outcomes)
    shared = {name: outcomes[name] for name in ("sample", "cluster")}
    members = {}
    for one, of_class in found.items():
        resampled = {f"{RESAMPLED}{name}": values[1:] for name, values in of_class.items()}
        scored = {name: float(values[0]) for name, values in of_class.items()}
        members[one] = replace(record, scores=scored), shared | resampled
    return members
