"""Notes below a published table: sources, rules of verdicts, and long lists of differences. Imports no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from transfer.published.reasons import Reason
from transfer.published.rows import read_paper
from transfer.published.schema import PublishedTable
from transfer.published.verdicts import PublishedKind
from transfer.records.labels import letter
from transfer.report.published.cell_values import Reasons, reason_texts
from transfer.report.tables.table import Note, Row

REASONS = "not comparable because"
"""Name of the column of reasons why numbers are not comparable."""
MOST_REASONS = 4
"""Number of reasons up to which a row has all of them; beyond it the options are listed in a note."""
OTHERS = (
    "further configurations of the same cell that are not comparable; every comparable one has a row. Where "
    "none is, the one with the fewest reasons is shown, of equals the one with most runs, then the one started last."
)


def table_notes(table: PublishedTable) -> list[Note]:
    """Return the notes on the source of a table and on its doubtful or reference numbers."""
    paper = read_paper(table.paper)
    title = f"{paper.title} ({paper.source}), {table.called}: {table.title}." + " In percent." * bool(table.rows)
    notes = [Note(text) for text in (title, *paper.notes, *table.notes)]
    for row in table.rows:
        if row.reference:
            notes.append(Note(f"for reference only: {row.reference}", row.label))
        notes += [
            Note(
                f"printed {value.printed}, never compared: {value.doubt}", f"{row.label}, {value.dataset}, {value.name}"
            )
            for value in row.values
            if value.doubt
        ]
    return notes


def rules(rows: Sequence[Row], margin: float) -> list[Note]:
    """Return the notes on how verdicts are made and configurations are chosen, if the table has any.

    Args:
        rows: rows of the table.
        margin: largest difference at which numbers agree, in percentage points.
    """
    notes = []
    verdicts = [row["verdict"] for row in rows if row["verdict"] is not None]
    if any(verdict.kind is not PublishedKind.NOT_COMPARABLE for verdict in verdicts):
        tests = "the interval of own - published at 90 % (two one-sided tests at 5 %) lies within that"
        rounding = "half the last printed digit counted (docs/concepts/statistics.md)"
        text = f"{tests}, {rounding}; the printed number has no seeds"
        notes.append(Note(text, f"agrees within {margin:g}"))
    if any(row["others"] for row in rows):
        notes.append(Note(OTHERS, "others"))
    return notes


def lettered(rows: Sequence[Row]) -> list[Note]:
    """Abbreviate long lists of differing options in the rows by letters; return the notes that explain the letters."""
    letters: dict[tuple[Reason, ...], str] = {}
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        reasons: Reasons | None = row[REASONS]
        if reasons and len(reasons.reasons) > MOST_REASONS and reasons.options:
            name = letters.setdefault(reasons.options, letter(len(letters)))
            places.setdefault(name, []).append(place)
            row[REASONS] = replace(reasons, letter=name)
    return [
        Note(f"{reason_texts(options)} (in brackets the table's)", name, tuple(places[name]))
        for options, name in letters.items()
    ]


def merged(notes: Iterable[tuple[int, Note]]) -> list[Note]:
    """Return the distinct notes of single rows, with the indices of all their rows.

    Args:
        notes: (index of a row, note).
    """
    places: dict[Note, list[int]] = {}
    for place, note in notes:
        places.setdefault(note, []).append(place)
    return [replace(note, rows=tuple(rows)) for note, rows in places.items()]
