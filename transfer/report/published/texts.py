"""Notes below a published table: sources, rules of verdicts, and long lists of differences. Imports no torch."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from transfer.experiments.published_rows import PublishedTable, Reason, read_paper
from transfer.experiments.published_verdicts import PublishedKind
from transfer.records.fields import letter
from transfer.records.record import Record
from transfer.report.tables.cell_text import cell_text, full_text
from transfer.report.tables.costs import hours, kind_of_hours
from transfer.report.tables.table import Note, Row


@dataclass(frozen=True)
class Reasons:
    """Reasons why a number cannot be compared with a published one.

    Attributes:
        reasons: all reasons.
        letter: abbreviates the reasons that are options, where they are many; a note explains it.
    """

    reasons: tuple[Reason, ...]
    letter: str = ""

    @property
    def options(self) -> tuple[Reason, ...]:
        """Reasons that are differences in options."""
        return tuple(reason for reason in self.reasons if reason.is_option)

    @property
    def others(self) -> tuple[Reason, ...]:
        """Reasons that are not differences in options."""
        return tuple(reason for reason in self.reasons if not reason.is_option)


def reason_texts(reasons: Iterable[Reason]) -> str:
    """Return the texts of several reasons, joined."""
    return "; ".join(map(str, reasons))


@cell_text.register
def _(reasons: Reasons) -> str:
    if not reasons.letter:
        return reason_texts(reasons.reasons)
    lettered = f"{len(reasons.options)} options: {reasons.letter}"
    return "; ".join([*map(str, reasons.others), lettered])


@full_text.register
def _(reasons: Reasons) -> str:
    return reason_texts([*reasons.others, *reasons.options] if reasons.letter else reasons.reasons)


def failures_text(broken: Sequence[Record], total: int) -> str:
    """Return the numbers of failed training runs, by status, out of a total: "diverged 1/3"."""
    counts = Counter(str(record.status) for record in broken)
    return ", ".join(f"{status} {count}/{total}" for status, count in sorted(counts.items()))


def hours_text(records: Iterable[Record]) -> str | None:
    """Return the total device hours of some runs by kind of device; None where a run has none recorded."""
    kinds: dict[str, float] = {}
    for record in records:
        kind = kind_of_hours(record)
        kinds[kind] = kinds.get(kind, 0.0) + hours(record)
    if any(map(math.isnan, kinds.values())):
        return None
    return " + ".join(f"{took:.3g} {kind}" for kind, took in kinds.items())


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
