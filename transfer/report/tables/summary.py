"""Scores of configurations: means over seeds in percent, and rates of failed runs."""

from collections.abc import Sequence
from typing import Any

from transfer.records.evidence import Arm, informative
from transfer.records.grouping import Group
from transfer.records.run_set import RunSet
from transfer.report.tables.cell_values import BreakdownRate, Endings
from transfer.report.tables.columns import (
    COSTS,
    WITH_FAILED,
    chance_level,
    count,
    group_cells,
    interval,
    run_ids,
    score_columns,
    unjudged_note,
    without_unused,
)
from transfer.report.tables.scores import image_notes, standard_error
from transfer.report.tables.table import Note, Table
from transfer.statistics.intervals import mean_and_deviation


def summary(runs: RunSet) -> Table:
    """Return one row per configuration (backbone, pretraining, protocol): mean scores over its seeds, and their cost.

    `transfer.records.evidence.Evidence.variant` defines what counts as one seed; fine-tuning runs from one pretraining
    are averaged if there are several pretrainings. The primary score has its 95 % interval over test samples and seeds,
    where there are per-sample results. Failed runs have no score: `statuses` counts the statuses of the runs and of the
    pretrainings that left no weights; `failed` has the rate of seeds without a score with its 95 % Wilson interval; and
    a mean that counts these at chance is shown beside the mean of the completed runs. Rows of a task with different
    protocols have different values of `Comparability`.
    """
    groups, records = runs.groups, runs.records
    variants = [runs.evidence.variant(group.records) for group in groups]
    scores = list(dict.fromkeys(name for record in records for name in informative(record)))
    rates = any(len(variant.units) > 1 for variant in variants) and any(variant.absent for variant in variants)
    rows = [_row(runs, group, variant, scores, rates) for group, variant in zip(groups, variants, strict=True)]
    notes = _unit_notes(groups, variants, rates) + unjudged_note(records)
    notes += image_notes([group.records for group in groups])
    return without_unused(Table.from_rows(rows, score_columns(records), notes))


def _unit_notes(groups: Sequence[Group], variants: Sequence[Arm], rates: bool) -> list[Note]:
    notes = []
    for row, (group, variant) in enumerate(zip(groups, variants, strict=True)):
        about = f"{group.first.task} on {group.dataset}, {group.backbone}"
        scored, units = sum(map(len, variant.units.values())), len(variant.units) - variant.broken
        if scored > units:
            text = f"{count(scored, 'run')} count as {count(units, 'seed')}: {_why(variant)}"
            notes.append(Note(text, about, (row,)))
    if rates:
        notes.append(Note("failed runs counted at chance level, or at 0 where it is not known", WITH_FAILED))
    return notes


def _why(variant: Arm) -> str:
    if all(kind == "weights" for kind, _ in variant.labels) and len(variant.units) == 1:
        return "the score does not depend on the seed"
    return "fine-tuning runs from one pretraining are averaged"


def _row(runs: RunSet, group: Group, variant: Arm, scores: Sequence[str], rates: bool) -> dict[str, Any]:
    first = group.first
    row: dict[str, Any] = {"task": first.task, **group_cells(group), "chance": chance_level(first, first.primary)}
    row[first.primary] = None
    row[f"{first.primary} low"], row[f"{first.primary} high"] = interval(runs, group.records, first.primary)
    row |= {"seeds": len(variant.units), "statuses": Endings.from_statuses(*variant.statuses)}
    for name in COSTS:
        row[name] = mean_and_deviation([float(one.cost[name]) for one in group.records if one.cost.get(name)])[0]
    if rates:
        row["failed"] = BreakdownRate.from_counts(*variant.breakdowns)
        counted = variant.with_breakdowns(first.primary)
        row[f"{first.primary} {WITH_FAILED}"] = mean_and_deviation(counted)[0]
    for name in scores:
        row[name], row[f"{name} sd"] = mean_and_deviation(variant.values(name))
        errors = [error for record in group.records if (error := standard_error(record, name)) is not None]
        if len(errors) == 1:
            row[f"{name} se"] = first.scale(name) * errors[0]
    return row | run_ids(group.records)
