"""Tables as text: for a terminal at most 100 columns wide, as Markdown, LaTeX and CSV.

For a terminal, what is the same in every row stands once above the table; texts are broken into lines; then columns of
details are left out, which is said below the table.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transfer.core.errors import visible
from transfer.core.files import csv_text
from transfer.core.grouped import values_by_key
from transfer.records.evidence import is_seeded
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import Store, StoredRun
from transfer.report.tables import table as tables
from transfer.report.tables.columns import COST_COLUMNS
from transfer.report.tables.scores import TRAIN_SECONDS, each_run, over_datasets, summary
from transfer.report.tables.table import RUN, RUN_COLUMNS, Column, MeanInterval, Note, Table, cell_text, holds_number

WIDTH = 100
"""Number of characters of a line."""
MORE = "--format markdown or csv"
"""How to see what is left out of the table of a report."""
LEAST = 2
"""Number of columns that are never left out."""
LINES, MOST_LINES = 4, 20
"""Lines of a text before a column is left out, and in a column that every reader needs."""


_TAG = re.compile(r"<(?=[A-Za-z/!?])")
"""How HTML begins in Markdown; elsewhere < is a sign like others."""
_PIECES = re.compile(r"\S{1,10}(?!\S)|_*[^_\s]{1,10}_?")
"""Words of at most 10 characters; longer ones in pieces of at most 10 that end at an underscore."""


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
        texts = " ".join(self.texts).split() if self.breakable else self.texts
        lines = LINES if self.column.detail >= 0 else MOST_LINES
        share = -(-max(map(len, self.texts), default=0) // lines)
        return max(share, 1, *map(len, [*self.heading.split(), *texts]))


def terminal(table: Table, *, more: str = MORE) -> str:
    """Return a table with its notes as lines that are at most `WIDTH` characters long.

    Columns are left out by their `detail`, then from the right; the first two stay, whatever they need. `more` says how
    to see them.
    """
    table = tables.with_intervals(table)
    columns = [_shown(table, column) for column in table.columns]
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
    lines += [""] if table.notes else []
    for note in note_texts(table.notes):
        lines += broken_lines(f"- {visible(note)}", WIDTH, "  ")
    return "\n".join(lines)


def _shown(table: Table, column: Column) -> _Cells:
    """Return the texts of a column; of the ids of runs the ends, which tell them apart."""
    texts = [" ".join(visible(text).split()).replace("|", "\\|") for text in texts_of(table, column)]
    if column.name in RUN_COLUMNS:
        texts = [" ".join(run.rpartition("-")[2] for run in text.split()) for text in texts]
        return _Cells(column, column.name, texts, breakable=False)
    words = any(map(str.isalpha, "".join(texts)))  # an interval is not broken
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
    lines = _row_lines([cells.heading for cells in columns], sides, widths)
    lines.append(f"|{'|'.join(rules)}|")
    for row in zip(*(cells.texts for cells in columns), strict=True):
        lines += _row_lines(row, sides, widths)
    return lines


def _row_lines(row: Sequence[str], sides: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of a row of a Markdown table, whose texts are aligned to their sides."""
    cells = zip(row, widths, strict=True)
    broken = [broken_lines(text, width) if len(text) > width else [text] for text, width in cells]
    lines = []
    for line in zip_longest(*broken, fillvalue=""):
        padded = (f" {text:{side}{width}} " for text, side, width in zip(line, sides, widths))
        lines.append(f"|{'|'.join(padded)}|")
    return lines


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
    runs = StoredRuns.of(StoredRun(Store(out).folder(record.run_id), record) for record in records)
    tables = [each_run(runs, intervals=True).without(TRAIN_SECONDS)]
    if len({record.seed for record in records}) > 1 and any(map(is_seeded, records)):
        tables.append(summary(runs).without(RUN, *COST_COLUMNS))
    errors = {name for table in tables for name in table.names if name.endswith((" sd", " se"))}
    tables = [table.without(*errors) for table in tables] + [over_datasets(runs).without(RUN)]
    smoke = " --smoke" if any(record.smoke for record in records) else ""
    more = f"python -m transfer.report table {out}{smoke} --per-run --format csv"
    return "\n\n".join(terminal(table, more=more) for table in tables if len(table))


def markdown(table: Table) -> str:
    """Return a Markdown table with its notes below; a cell without a value is empty."""
    texts = {column: [*map(_one_line, texts_of(table, column))] for column in table.columns}
    columns = [_Cells(column, _one_line(column.name), of_column, True) for column, of_column in texts.items()]
    lines = _grid(columns, [max(len(cells.heading) + 2, cells.width) for cells in columns])
    notes = [f"- {_one_line(note)}" for note in note_texts(table.notes)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def csv(table: Table) -> str:
    """Return comma-separated values with all digits."""
    columns = (map(partial(tables.plain_value, name), values(table, name)) for name in table.names)
    return csv_text([table.names, *zip(*columns, strict=True)])


def note_texts(notes: Iterable[Note]) -> list[str]:
    """Return the sentences of notes; equal texts on several rows or settings are merged into one sentence."""
    subjects = values_by_key(dict.fromkeys((note.text, note.about) for note in notes))
    return ["; ".join(filter(None, abouts)) + (": " if any(abouts) else "") + text for text, abouts in subjects.items()]


def values(table: Table, name: str) -> list[Any]:
    """Return the values of a column for display; if some are floats, integers become floats."""
    column = [None if tables.is_missing(value) and not isinstance(value, str) else value for value in table[name]]
    numbers = [value for value in column if value is not None]
    if all(map(tables.is_number, numbers)) and not all(isinstance(value, int) for value in numbers):
        return [None if value is None else float(value) for value in column]
    return column


def constant_columns(table: Table, least: int = 2) -> dict[str, str]:
    """Return the columns of text with one value in all rows, with that value; not those of runs.

    Args:
        table: the table.
        least: number of rows below which nothing counts as constant.
    """
    if len(table) < least:
        return {}
    constant = {}
    for name in table.names:
        if name in RUN_COLUMNS or any(map(holds_number, table[name])):
            continue
        shown = {cell_text(value) for value in table[name]}
        if len(shown) == 1:
            constant[name] = shown.pop()
    return constant if len(constant) < len(table.names) else {}


def texts_of(table: Table, column: Column) -> list[str]:
    """Return the texts of a column's cells, with the digits of the column."""
    digits = f".{column.digits}f" if column.significant_digits is None else f".{column.significant_digits}g"
    if column.name in RUN_COLUMNS:
        return [" ".join(value) if isinstance(value, tuple) else cell_text(value) for value in table[column.name]]
    cells = values(table, column.name)
    return [format(value, digits) if isinstance(value, float) else cell_text(value) for value in cells]


def _one_line(text: str) -> str:
    """Return a text without line breaks, with escaped bars, so that it stays in its cell, and with no tag of HTML."""
    return without_tags(visible(" ".join(text.splitlines())).replace("|", "\\|"))


def without_tags(text: str) -> str:
    """Return a text in which Markdown finds no tag of HTML."""
    return _TAG.sub("&lt;", text)  # a backslash would be undone by one before it


_SPECIAL = str.maketrans(
    {character: rf"\{character}" for character in "{}&%$#_"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}"}
)
"""LaTeX of the characters that have a meaning in LaTeX."""


def latex(table: Table) -> str:
    """Return an environment `tabular`: texts aligned left, numbers right, notes below as comments.

    What is the same in every row is one of the notes. Three columns of means with intervals fit one column of a paper:
    their sizes are set here, intervals stand below means, and long texts are broken.
    """
    constant = constant_columns(table)
    above = ", ".join(f"{name} {value}" for name, value in constant.items() if value)
    table = table.without(*constant)
    narrow = table.has_means
    columns = [_cells(table, column, narrow) for column in table.columns]
    alignment = "".join("r" if any(map(holds_number, values(table, column.name))) else "l" for column in table.columns)
    heading, *rows = (" & ".join(row) + r" \\" for row in zip(*columns, strict=True))
    begin, end, gap = [rf"\begin{{tabular}}{{{alignment}}}"], r"\end{tabular}", ""
    if narrow:
        begin, end, gap = [r"{\footnotesize\setlength{\tabcolsep}{3pt}%", *begin], r"\end{tabular}}", "[3pt]"
    body = [*begin, r"\toprule", heading, r"\midrule", *(row + gap for row in rows), r"\bottomrule", end]
    notes = [f"In every row: {' '.join(above.split())}."] if above else []
    notes = [f"% {visible(' '.join(note.split()))}" for note in (*notes, *note_texts(table.notes))]
    return "\n".join([*body, *notes])


def _cells(table: Table, column: Column, narrow: bool) -> list[str]:
    """Return the heading of a column, one word below the other, and its cells."""
    words = _PIECES.findall(column.name) if narrow else re.split("(?<! on) ", column.name)
    cells = [_stack([*map(latex_of, words)], "r")]
    for text, value in zip(texts_of(table, column), table[column.name], strict=True):
        lines = [latex_of(line) for line in (textwrap.wrap(text, 22) if narrow else [text])]
        if isinstance(value, MeanInterval):
            mean, ends = map(latex_of, value.texts)
            lines = [mean, rf"{{\scriptsize {ends}}}"] if ends else [mean]
        cells.append(_stack(lines, "r" if isinstance(value, MeanInterval) else "l"))
    return cells


def _stack(lines: list[str], side: str) -> str:
    """Return the LaTeX of lines one below the other."""
    text = r"\\".join(lines)
    return rf"\shortstack[{side}]{{{text}}}" if len(lines) > 1 else text


def latex_of(text: str) -> str:
    """Return the LaTeX that prints a text."""
    return visible(text).translate(_SPECIAL)
