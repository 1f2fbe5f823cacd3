"""Table of the scores of single runs, in percent."""

from collections.abc import Sequence
from typing import Any

from backbones.pretrain.options import narrow_crop
from transfer.records.evidence import informative
from transfer.records.grouping import dataset_label
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import (
    chance_level,
    interval,
    looked_for,
    run_ids,
    score_columns,
    seed_cells,
    unjudged_note,
    without_unused,
)
from transfer.report.tables.table import Note, Table

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
            texts[f"{record.task} on {dataset}"] = narrow_crop(*map(record.options.get, ("size", "resize")))
            for note in texts.items():
                places = rows.setdefault(note, [])
                places += [row] if row not in places else []
    return [Note(text, about, tuple(places)) for (about, text), places in rows.items() if text]
