"""Scores of each class, with the intervals of the configuration's score: over resampled test images and seeds."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Any

from transfer.comparison.paired_intervals import mean_score, read_outcomes
from transfer.core.errors import UserError, shortened
from transfer.records.per_sample import RESAMPLED, scoring
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.tables.columns import group_cells, looked_for, run_ids, score_columns, without_unused
from transfer.report.tables.table import Note, Table
from transfer.task import Outcomes, load_task

UNNAMED = "these records do not name their classes, which have the category ids of the annotations"


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
        scores = names or [name for name in looked_for(group.first) if name.endswith("AP")]
        of_run, seen = {}, dict[str, str]()
        for run in (runs.by_id[record.run_id] for record in group.records if record.scores):
            of_run[run.record.run_id], titles = _of_classes(run, [name for name in scores if name in run.record.scores])
            seen |= titles
            if absent := sorted({*run.record.details.get("classes", {}).values()} - {*titles.values()}):
                notes[Note(f"no object to find, so no score: {shortened(absent, 3)}", group.dataset)] = None
            if titles and "classes" not in run.record.details:
                notes[Note(UNNAMED, group.backbone)] = None
        for one, title in seen.items():
            row = {"task": group.first.task, **group_cells(group), "class": title}
            for score in scores:
                members = [member for of_class in of_run.values() if (member := of_class.get(f"{score} {one}"))]
                row |= _cells(members, score, f"{score} {one}", runs)
            rows.append(row | run_ids(group.records))
    return without_unused(Table.from_rows(rows, score_columns(runs.records), notes))


def _of_classes(run: Run, scores: Sequence[str]) -> tuple[dict[str, tuple[Run, Outcomes]], dict[str, str]]:
    """Return the run and its outcomes with one class's score in the place of all, by "SCORE ID"; and titles by id."""
    outcomes, names = read_outcomes(run), run.record.details.get("classes", {})
    with scoring():
        found = load_task(run.record.task).by_class(scores, outcomes)
    shared = {name: outcomes[name] for name in ("sample", "cluster")}
    members = {}
    for score, one, values in ((score, one, values) for score, each in found.items() for one, values in each.items()):
        name, metrics = f"{score} {one}", run.record.metrics
        record = replace(run.record, scores={name: float(values[0])}, metrics=metrics | {name: metrics.get(score, {})})
        members[name] = replace(run, record=record), {**shared, f"{RESAMPLED}{name}": values[1:]}
    return members, {one: names.get(one, one) for of_class in found.values() for one in of_class}


def _cells(members: Sequence[tuple[Run, Outcomes]], score: str, name: str, runs: RunSet) -> dict[str, float | None]:
    """Return the mean over the members and its interval, in the unit of tables; None where there are none."""
    values: list[float | None] = [None] * 3
    if members:
        values[0] = fmean(run.record.scores[name] for run, _ in members)
        outcomes = {run.record.run_id: arrays for run, arrays in members}
        with suppress(UserError):  # too few images have the class
            if found := mean_score([run for run, _ in members], name, runs.evidence, outcomes):
                values = [found.estimate, found.low, found.high]
    scaled = (value and members[0][0].record.scale(score) * value for value in values)
    return dict(zip((score, f"{score} low", f"{score} high"), scaled, strict=True))
