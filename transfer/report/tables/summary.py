"""Scores of configurations: means over seeds in percent, and rates of breakdowns."""

from collections.abc import Sequence
from typing import Any

from transfer.records.evidence import Arm
from transfer.records.grouping import Group
from transfer.records.run_set import RunSet
from transfer.report.tables.cell_values import BreakdownRate, Endings
from transfer.report.tables.columns import (
    WITH_BREAKDOWNS,
    group_cells,
    grouping_notes,
    run_ids,
    score_columns,
    unjudged_note,
    without_unused,
)
from transfer.report.tables.scores import few_image_notes, standard_error
from transfer.report.tables.table import Note, Table
from transfer.statistics.intervals import mean_and_deviation


def summary(runs: RunSet) -> Table:
    """Return one row per configuration (backbone, pretraining, protocol): mean and deviation of scores over its seeds.

    `transfer.records.evidence.Evidence.variant` defines what counts as one seed; fine-tunings of one pretraining are
    averaged if there are several pretrainings. A run that broke down has no score: `outcomes` counts the statuses of
    the runs and of the pretrainings that left no weights; `broke down` has the rate of seeds without a score with its
    95 % Wilson interval; and a mean that counts these at chance is shown beside the mean of the survivors. Rows of a
    task with different protocols have different values of `Comparability`.
    """
    grouping, records = runs.grouping, runs.records
    variants = [runs.evidence.variant(group.records) for group in grouping.groups]
    scores = list(dict.fromkeys(name for record in records for name in record.scores))
    rates = any(len(variant.units) > 1 for variant in variants) and any(variant.absent for variant in variants)
    rows = [_row(group, variant, scores, rates) for group, variant in zip(grouping.groups, variants, strict=True)]
    notes = grouping_notes(grouping) + _unit_notes(grouping.groups, variants, rates) + unjudged_note(records)
    notes += few_image_notes([group.records for group in grouping.groups])
    return without_unused(Table.from_rows(rows, score_columns(records), notes))


def _unit_notes(groups: Sequence[Group], variants: Sequence[Arm], rates: bool) -> list[Note]:
    notes = []
    for row, (group, variant) in enumerate(zip(groups, variants, strict=True)):
        about = f"{group.first.task} on {group.dataset}, {group.backbone}"
        scored = sum(map(len, variant.units.values()))
        if scored > len(variant.units) - variant.broken:
            text = f"{scored} runs count as {len(variant.units) - variant.broken}: {_why(variant)}"
            notes.append(Note(text, about, rows=(row,)))
    if rates:
        text = "with trainings that broke down at chance, or at 0 where chance is not known"
        notes.append(Note(text, WITH_BREAKDOWNS))
    return notes


def _why(variant: Arm) -> str:
    if all(kind == "weights" for kind, _ in variant.labels) and len(variant.units) == 1:
        return "seeds change nothing here"
    return "those that start from one pretraining are averaged"


def _row(group: Group, variant: Arm, scores: Sequence[str], rates: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"task": group.first.task, **group_cells(group)}
    row |= {"seeds": len(variant.units), "outcomes": Endings.from_statuses(*variant.statuses)}
    if rates:
        row["broke down"] = BreakdownRate.from_counts(*variant.breakdowns)
        counted = variant.with_breakdowns(group.first.primary)
        row[f"{group.first.primary} {WITH_BREAKDOWNS}"] = mean_and_deviation(counted)[0]
    for name in scores:
        row[name], row[f"{name} sd"] = mean_and_deviation(variant.values(name))
        errors = [error for record in group.records if (error := standard_error(record, name)) is not None]
        if len(errors) == 1:
            row[f"{name} se"] = group.first.scale(name) * errors[0]
    return row | run_ids(group.records)
