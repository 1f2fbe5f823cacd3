"""Table of the scores of single runs, in percent."""

from collections.abc import Sequence
from typing import Any

from transfer.records.evidence import Arm, informative
from transfer.records.grouping import Group, dataset_label
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import (
    COSTS,
    WITH_FAILED,
    chance_level,
    count,
    group_cells,
    interval,
    looked_for,
    run_ids,
    score_columns,
    seed_cells,
    unjudged_note,
    without_unused,
)
from transfer.report.tables.table import BreakdownRate, Endings, Note, Table
from transfer.statistics.intervals import mean_and_deviation

TRAIN_SECONDS = "train_seconds"


def each_run(runs: RunSet, *, intervals: bool = False) -> Table:
    """Return one row per run: its configuration, outcome, scores in percent and training time in seconds.

    Backbone, pretraining and protocol are named as in `summary`; the last two are left out where all rows agree.
    With `intervals` the scores that readers look for have their 95 % intervals over test samples.
    """
    group_of = {id(record): group for group in runs.groups for record in group.records}
    rows: list[dict[str, Any]] = []
    for record in runs.records:
        group, values = group_of[id(record)], _scores(record)
        for name in looked_for(record) if intervals else ():
            values[f"{name} low"], values[f"{name} high"] = interval(runs, [record], name)
        rows.append(
            {
                "task": record.task,
                "dataset": dataset_label([record], runs.exports),
                "backbone": group.backbone,
                "pretraining": group.pretraining,
                "protocol": group.protocol,
                "chance": chance_level(record, record.primary),
                **seed_cells(runs, record),
                "outcome": record.status,
                **values,
                TRAIN_SECONDS: record.cost.get("train_seconds"),
                **run_ids([record]),
            }
        )
    notes = unjudged_note(runs.records) + image_notes([[record] for record in runs.records])
    return without_unused(Table.from_rows(rows, score_columns(runs.records), notes))


def _scores(record: Record) -> dict[str, float | None]:
    """Return the scores in percent, each with its standard error over draws if it has several draws."""
    values: dict[str, float | None] = {}
    for name in informative(record):
        values[name] = record.shown(name)
        if (error := standard_error(record, name)) is not None:
            values[f"{name} se"] = record.scale(name) * error
    return values


def standard_error(record: Record, name: str) -> float | None:
    """Return the standard error of a score over its draws, in the score's unit; None for a single draw."""
    details = record.details.get(name)
    return details.get("standard_error") if isinstance(details, dict) else None


def image_notes(records_of_rows: Sequence[Sequence[Record]]) -> list[Note]:
    """Return a note for each dataset with fewer images in some classes than shots, or a narrow crop of its images.

    Args:
        records_of_rows: the runs behind each row of the table.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for row, records in enumerate(records_of_rows):
        for record in records:
            support, dataset = record.details.get("support"), record.dataset.get("name")
            fewer = support.get("classes_with_fewer") if isinstance(support, dict) else None
            texts = {
                f"accuracy_{shots}shot on {dataset}": f"{classes} class{'es have' if classes > 1 else ' has'} fewer "
                f"than {shots} training images, and the probe takes all of them"
                for shots, classes in (fewer.items() if isinstance(fewer, dict) else ())
                if classes
            }
            for note in texts.items():
                places = rows.setdefault(note, [])
                places += [row] if row not in places else []
    return [Note(text, about, tuple(places)) for (about, text), places in rows.items()]


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
        row["failed"] = BreakdownRate(*variant.breakdowns)
        counted = variant.with_breakdowns(first.primary)
        row[f"{first.primary} {WITH_FAILED}"] = mean_and_deviation(counted)[0]
    for name in scores:
        row[name], row[f"{name} sd"] = mean_and_deviation(variant.values(name))
        errors = [error for record in group.records if (error := standard_error(record, name)) is not None]
        if len(errors) == 1:
            row[f"{name} se"] = first.scale(name) * errors[0]
    return row | run_ids(group.records)
