"""The tables of records whose folders do not matter."""

from collections.abc import Callable, Mapping, Sequence
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


def _of_records(table: Callable[[RunSet], Table]) -> Callable[..., Table]:
    return lambda records, known=None: table(run_set(records, known))


each_run_of, summary_of, over_datasets_of = map(_of_records, (scores.each_run, scores.summary, scores.over_datasets))
cost_table_of, layer_table_of, norm_table_of = map(
    _of_records, (costs.cost_table, tokens.layer_table, tokens.norm_table)
)


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
