"""Scores of single runs as a table. Scores are in percent."""

from typing import Any

from transfer.records.grouping import dataset_label
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import grouping_notes, run_ids, score_columns, without_unused
from transfer.report.tables.table import Column, Table

TRAIN_SECONDS = Column("train_seconds", "seconds", "lower")


def each_run(runs: RunSet) -> Table:
    """Return one row per run: what it is, how it ended, its scores in percent, what it cost.

    Backbone, pretraining and protocol are named as in `summary`; the last two only where rows differ in them.
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
    return without_unused(Table.of(rows, columns, grouping_notes(grouping)))


def _scores(record: Record) -> dict[str, float]:
    """The scores in percent, each with the standard error over its draws, where it has several."""
    values: dict[str, float] = {}
    for name in record.scores:
        values[name] = record.shown(name)
        error = standard_error(record, name)
        if error is not None:
            values[f"{name} se"] = record.scale(name) * error
    return values


def standard_error(record: Record, name: str) -> float | None:
    """Return the standard error of a score over its draws, in the score's own unit; None where it has one draw."""
    details = record.details.get(name)
    return details.get("standard_error") if isinstance(details, dict) else None
