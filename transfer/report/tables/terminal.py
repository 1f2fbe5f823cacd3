"""Tables for a terminal: at most 100 columns wide.

What is the same in every row stands once above the table; texts are broken into lines; then columns of details are left
out, which is said below the table.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from transfer.core.errors import visible
from transfer.records.evidence import is_seeded
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.records.store import Run, Store
from transfer.report.tables.columns import COSTS
from transfer.report.tables.scores import TRAIN_SECONDS, each_run, over_datasets, summary
from transfer.report.tables.table import RUN, RUN_COLUMNS, Column, Table, holds_number, with_intervals
from transfer.report.tables.text import constant_columns, note_texts, texts_of

WIDTH = 100
"""Number of characters of a line."""
MORE = "--format markdown or csv"
"""How to see what is left out of the table of a report."""
LEAST = 2
"""Number of columns that are never left out."""
LINES, MOST_LINES = 4, 20
"""Lines of a text before a column is left out, and in a column that every reader needs."""


@dataclass
class _Cells:
    """The texts of a column: its heading, and a text per row."""

    column: Column
    heading: str
    texts: list[str]
    breakable: bool

    @property
    def width(self) -> int:
        """Number of characters of the longest line."""
        return max(map(len, [self.heading, *self.texts]))

    @property
    def smallest_width(self) -> int:
        """The width with the heading broken at every blank, and texts into a few lines."""
        texts = [word for text in self.texts for word in text.split()] if self.breakable else self.texts
        lines = LINES if self.column.detail >= 0 else MOST_LINES
        share = -(-max(map(len, self.texts), default=0) // lines)
        return max(share, 1, *map(len, [*self.heading.split(), *texts]))


def terminal(table: Table, *, more: str = MORE) -> str:
    """Return a table with its notes as lines that are at most `WIDTH` characters long.

    Columns are left out by their `detail`, then from the right; the first two stay, whatever they need. `more` says how
    to see them.
    """
    table = with_intervals(table)
    columns = [_cells(table, column) for column in table.columns]
    constant = constant_columns(table, least=2 if _line_width([cells.width for cells in columns]) <= WIDTH else 1)
    columns, left_out = [cells for cells in columns if cells.column.name not in constant], list[str]()
    while (widths := _widths(columns)) is None and len(columns) > LEAST:
        # the last of those with most detail; the ids of runs at the very end
        places = range(len(columns) - 1, LEAST - 1, -1)
        dropped = max(places, key=lambda at: (columns[at].column.name not in RUN_COLUMNS, columns[at].column.detail))
        left_out.insert(0, columns.pop(dropped).heading)
    above = ", ".join(f"{name} {value}" for name, value in constant.items() if value)
    lines = [*broken_lines(f"{'In every row' if len(table) > 1 else 'Here'}: {visible(above)}.", WIDTH), ""]
    lines = (lines if above else []) + _grid(columns, widths or [cells.width for cells in columns])
    if left_out:
        lines += broken_lines(f"Not shown in {WIDTH} columns: {', '.join(left_out)} ({more}).", WIDTH)
    notes = [line for note in note_texts(table.notes) for line in broken_lines(f"- {visible(note)}", WIDTH, "  ")]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _cells(table: Table, column: Column) -> _Cells:
    """Return the texts of a column; of the ids of runs the ends, which tell them apart."""
    texts = [" ".join(visible(text).split()).replace("|", "\\|") for text in texts_of(table, column)]
    if column.name in RUN_COLUMNS:
        texts = [" ".join(run.rpartition("-")[2] for run in text.split()) for text in texts]
        return _Cells(column, column.name, texts, breakable=False)
    words = any(character.isalpha() for text in texts for character in text)  # an interval is not broken
    return _Cells(column, visible(column.name), texts, words and not any(map(holds_number, table[column.name])))


def _line_width(widths: Sequence[int]) -> int:
    return sum(width + 3 for width in widths) + 1


def _widths(columns: Sequence[_Cells]) -> list[int] | None:
    """Return the widths with which the columns fit, the longest texts broken; None if they do not."""
    widths, smallest = [cells.width for cells in columns], [cells.smallest_width for cells in columns]
    while _line_width(widths) > WIDTH:
        room = [(now, place) for place, (now, least) in enumerate(zip(widths, smallest, strict=True)) if now > least]
        if not room:
            return None
        widths[max(room)[1]] -= 1
    return widths


def _grid(columns: Sequence[_Cells], widths: Sequence[int]) -> list[str]:
    """Return the lines of a Markdown table; long texts are wrapped."""
    sides = ["<" if cells.breakable else ">" for cells in columns]
    dashes = ["-" * (width + 1) for width in widths]
    rules = [f":{line}" if side == "<" else f"{line}:" for line, side in zip(dashes, sides, strict=True)]
    rows = []
    for row in zip(*([cells.heading, *cells.texts] for cells in columns), strict=True):
        broken = [broken_lines(text, width) for text, width in zip(row, widths, strict=True)]
        lines = zip_longest(*broken, fillvalue="")
        rows.append([[f" {text:{side}{width}} " for text, side, width in zip(line, sides, widths)] for line in lines])
    rows.insert(1, [rules])
    return [f"|{'|'.join(line)}|" for lines in rows for line in lines]


def broken_lines(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines of at most `width` characters; a longer word is a line of its own."""
    words = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return words.wrap(" ".join(text.split())) or [""]


def run_table(records: Sequence[Record], out: Path) -> str:
    """Return a table with a row per record, and means over seeds and datasets where there are several.

    Intervals stand in the place of deviations and standard errors.

    Args:
        records: the records.
        out: folder of their runs.
    """
    runs = RunSet.of(Run(Store(out).folder(record.run_id), record) for record in records)
    tables = [each_run(runs, intervals=True).without(TRAIN_SECONDS)]
    if len({record.seed for record in records}) > 1 and any(map(is_seeded, records)):
        tables.append(summary(runs).without(RUN, *COSTS))
    tables = [table.without(*(name for name in table.names if name.endswith((" sd", " se")))) for table in tables]
    tables.append(over_datasets(runs).without(RUN))
    smoke = " --smoke" * any(record.smoke for record in records)
    more = f"python -m transfer.report table {out}{smoke} --per-run --format csv"
    return "\n\n".join(terminal(table, more=more) for table in tables if len(table))
