"""Table of the scores of single runs, in percent."""

from typing import Any

from transfer.records.grouping import dataset_label
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import grouping_notes, run_ids, score_columns, without_unused
from transfer.report.tables.few_images import few_image_notes
from transfer.report.tables.table import Column, Table

TRAIN_SECONDS = Column("train_seconds", "seconds", "lower")


def each_run(runs: RunSet) -> Table:
    """Return one row per run: its configuration, outcome, scores in percent and training time in seconds.

    Backbone, pretraining and protocol are named as in `summary`; the last two are left out where all rows agree.
    """
    grouping = runs.grouping
    group_of = {id(record): group for group in grouping.groups for record in group.records}
    scores = dict.fromkeys(name for record in runs.records for name in _scores(record))
    rows: list[dict[str, Any]] = []
    for record in runs.records:
        group, values = group_of[id(record)], _scores(record)
        rows.append(
            {
                "task": record.task,
                "dataset": dataset_label([record], runs.exports),
                "backbone": group.backbone,
                "pretraining": group.pretraining,
                "protocol": group.protocol,
                "seed": record.seed,
                "outcome": record.outcome["status"],
                **{name: values.get(name) for name in scores},
                TRAIN_SECONDS.name: record.cost.get("train_seconds"),
                **run_ids([record]),
            }
        )
    columns = [*score_columns(runs.records), TRAIN_SECONDS]
    notes = grouping_notes(grouping) + few_image_notes([[record] for record in runs.records])
    return without_unused(Table.from_rows(rows, columns, notes))


def _scores(record: Record) -> dict[str, float]:
    """Return the scores in percent, each with its standard error over draws if it has several draws."""
    values: dict[str, float] = {}
    for name in record.scores:
        values[name] = record.shown(name)
        error = standard_error(record, name)
        if error is not None:
            values[f"{name} se"] = record.scale(name) * error
    return values


def standard_error(record: Record, name: str) -> float | None:
    """Return the standard error of a score over its draws, in the score's unit; None for a single draw."""
    details = record.details.get(name)
    return details.get("standard_error") if isinstance(details, dict) else None
