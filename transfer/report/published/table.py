"""Published tables beside the user's own numbers: `python -m transfer.report RUNS --paper scaled_relu --table 4`.

Own numbers are means over seeds, in percent. A row has a verdict only if its runs differ from the full tier of the
table's sweep in nothing but the seed; every other row lists its differences. `docs/concepts/statistics.md` explains how
verdicts are made.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from transfer.experiments.published_rows import PublishedTable, read_paper, table_of
from transfer.experiments.sweep_file import read_sweep
from transfer.records.evidence import Evidence
from transfer.records.protocol import configurations
from transfer.records.run_set import RunSet
from transfer.report.published.cells import COLUMNS, OwnRunInputs, cell_row
from transfer.report.published.matching import Matcher, OwnRuns, own_runs
from transfer.report.published.verdicts import MARGIN, PublishedKind
from transfer.report.tables.table import Note, Row, Table

_read_sweep = lru_cache(read_sweep)


def paper_table(runs: RunSet, paper: str, table: str, *, margin: float | None = None) -> Table:
    """Return the cells of a published table, one row each, with the user's own numbers; of a figure its claims.

    A cell has a row for each reading of its printed options that was run, and for each comparable configuration. If
    none is comparable, the configuration that differs least from the table's is shown; `others` counts the rest. See
    `transfer.report.published.cells.COLUMNS` for the columns.

    Args:
        margin: largest difference at which numbers agree, in points; by default `MARGIN`.

    Raises:
        UsageError: the paper or table is unknown, or the file of published numbers cannot be read.
    """
    margin = MARGIN if margin is None else margin
    published = table_of(paper, table)
    if published.claims:
        sweep = f"no legible numbers; `python -m transfer.sweep {published.sweep} --tier full` makes yours"
        return Table.from_rows(({"claim": one} for one in published.claims), (), [*_notes(published), Note(sweep)])
    # pretrainings are looked up among completed runs, and failed ones that are shown
    shown = {record.run_id for record in runs.records}
    known = [run.record for run in runs.known if not run.record.training_failed or run.record.run_id in shown]
    inputs = OwnRunInputs(
        Matcher(_read_sweep(published.sweep, "full"), read_paper(paper), runs.exports, runs.records),
        Evidence(known),
        dict(zip((record.run_id for record in runs.records), configurations(runs.records, runs.exports), strict=True)),
        {run.record.run_id: run for run in runs},
        margin,
    )
    rows: list[Row] = []
    places: dict[Note, list[int]] = {}
    for row in published.rows:
        for value in row.values:
            found: list[OwnRuns | None] = [*own_runs(inputs.matcher.matches(row, value), inputs.keys)]
            for of_cell in found or [None]:
                cells, notes = cell_row(row, value, of_cell, inputs)
                for note in notes:
                    places.setdefault(note, []).append(len(rows))
                rows.append(cells)
    of_rows = [replace(note, rows=tuple(of_note)) for note, of_note in places.items()]
    return Table(list(COLUMNS), rows, [*_notes(published), *_rules(rows, margin), *of_rows])


def _notes(table: PublishedTable) -> list[Note]:
    """Return the notes on the source of a table and on its doubtful or reference numbers."""
    paper = read_paper(table.paper)
    title = f"{paper.title} ({paper.source}), {table.called}: {table.title}." + " In percent." * bool(table.rows)
    notes = [Note(text) for text in (title, *paper.notes, *table.notes)]
    for row in table.rows:
        if row.reference:
            notes.append(Note(f"for reference only: {row.reference}", row.label))
        for value in row.values:
            if value.doubt:
                about = f"{row.label}, {value.dataset}, {value.name}"
                notes.append(Note(f"printed {value.printed}, never compared: {value.doubt}", about))
    return notes


def _rules(rows: Sequence[Row], margin: float) -> list[Note]:
    """Return the notes on how verdicts are made and configurations are chosen, if the table has any."""
    notes = []
    verdicts = [row["verdict"] for row in rows if row["verdict"] is not None]
    if any(verdict.kind is not PublishedKind.NOT_COMPARABLE for verdict in verdicts):
        tests = "the interval of own - published at 90 % (two one-sided tests at 5 %) lies within that"
        rounding = "half the last printed digit counted (docs/concepts/statistics.md)"
        text = f"{tests}, {rounding}; the printed number has no seeds"
        notes.append(Note(text, f"agrees within {margin:g}"))
    if any(row["others"] for row in rows):
        text = "further configurations of the same cell that are not comparable"
        notes.append(Note(f"{text}; without a comparable one, the one with the fewest reasons is shown", "others"))
    return notes
