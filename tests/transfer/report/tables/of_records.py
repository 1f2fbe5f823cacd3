"""The tables of records whose folders do not matter."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.transfer.records.recorded import run_set
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.tables import costs, scores, stability_map, tokens
from transfer.report.tables.stability_map import StabilityMap
from transfer.report.tables.table import Row, Table, cell_text
from transfer.report.tables.text import note_texts

Records = Sequence[Record]


def each_run_of(records: Records, known: Records | None = None) -> Table:
    return scores.each_run(run_set(records, known))


def summary_of(records: Records, known: Records | None = None) -> Table:
    return scores.summary(run_set(records, known))


def over_datasets_of(records: Records, known: Records | None = None) -> Table:
    return scores.over_datasets(run_set(records, known))


def cost_table_of(records: Records, known: Records | None = None) -> Table:
    return costs.cost_table(run_set(records, known))


def layer_table_of(records: Records) -> Table:
    return tokens.layer_table(run_set(records))


def norm_table_of(records: Records) -> Table:
    return tokens.norm_table(run_set(records))


def map_of(
    records: Records,
    x: str = "lr",
    y: str = "warmup_epochs",
    by: Sequence[str] = (),
    *,
    known: Records | None = None,
    folders: Mapping[str, Path] | None = None,
) -> StabilityMap:
    at = folders or {}
    runs = [Run(at.get(record.run_id, Path(record.run_id)), record) for record in records]
    whole = None if known is None else run_set(known)
    return stability_map.stability_map(RunSet.of(runs, whole), x, y, by)


def only(table: Table) -> Row:
    """The table's one row."""
    (row,) = table.rows
    return row


def texts(table: Table, name: str) -> list[str]:
    """The values of a column as they are shown."""
    return [cell_text(value) for value in table[name]]


def said(table: Table) -> list[str]:
    """The notes of a table as they are shown."""
    return note_texts(table.notes)
