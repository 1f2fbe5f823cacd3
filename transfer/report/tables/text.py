"""Tables as Markdown, which terminals show too, as LaTeX and CSV."""

import re
import textwrap
from collections.abc import Iterable
from typing import Any

from transfer.core.errors import visible
from transfer.core.files import csv_text
from transfer.report.tables import table as tables
from transfer.report.tables.table import RUN_COLUMNS, Column, MeanInterval, Note, Table, cell_text, holds_number

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
"""How HTML begins in Markdown; elsewhere < is a sign like others."""
_PIECES = re.compile(r"\S{1,10}(?!\S)|_*[^_\s]{1,9}_?")
"""Words of at most 10 characters; longer ones in pieces that end at an underscore."""


def markdown(table: Table) -> str:
    """Return a Markdown table with its notes below; a cell without a value is empty."""
    columns = []
    for column in table.columns:
        texts = [_one_line(column.name), *map(_one_line, texts_of(table, column))]
        width = max(len(texts[0]) + 2, *map(len, texts))
        columns.append([f" {texts[0]:{width}} ", ":" + "-" * (width + 1), *(f" {text:{width}} " for text in texts[1:])])
    lines = [f"|{'|'.join(cells)}|" for cells in zip(*columns, strict=True)]
    notes = [f"- {_one_line(note)}" for note in note_texts(table.notes)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def csv(table: Table) -> str:
    """Return comma-separated values with all digits."""
    columns = [[tables.plain_value(name, value) for value in values(table, name)] for name in table.names]
    return csv_text([table.names, *zip(*columns, strict=True)])


def note_texts(notes: Iterable[Note]) -> list[str]:
    """Return the sentences of notes; equal texts on several rows or settings are merged into one sentence."""
    subjects: dict[str, list[str]] = {}
    for about, text in dict.fromkeys((note.about, note.text) for note in notes):
        subjects.setdefault(text, []).append(about)
    return ["; ".join(filter(None, abouts)) + (": " if any(abouts) else "") + text for text, abouts in subjects.items()]


def notes_of_row(table: Table, row: int) -> list[str]:
    """Return the sentences of the notes that belong to a row."""
    return note_texts(note for note in table.notes if not note.rows or row in note.rows)


def values(table: Table, name: str) -> list[Any]:
    """Return the values of a column for display; if some are floats or missing, integers become floats."""
    column = [None if tables.is_missing(value) and not isinstance(value, str) else value for value in table[name]]
    numbers = [value for value in column if value is not None]
    if all(map(tables.is_number, numbers)) and not all(isinstance(value, int) for value in column):
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
    narrow = any(isinstance(value, MeanInterval) for row in table.rows for value in row.values())
    columns = [_cells(table, column, narrow) for column in table.columns]
    alignment = "".join("r" if any(map(holds_number, values(table, column.name))) else "l" for column in table.columns)
    heading, *lines = (" & ".join(row) + r" \\" for row in zip(*columns, strict=True))
    body = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", heading, r"\midrule"]
    body += [*(line + "[3pt]" * narrow for line in lines), r"\bottomrule"]
    body = [r"{\footnotesize\setlength{\tabcolsep}{3pt}%"] * narrow + [*body, r"\end{tabular}" + "}" * narrow]
    notes = [f"% {visible(' '.join(note.split()))}" for note in note_texts(table.notes)]
    notes = [f"% In every row: {visible(' '.join(above.split()))}."] * bool(above) + notes
    return "\n".join([*body, *notes])


def _cells(table: Table, column: Column, narrow: bool) -> list[str]:
    """Return the heading of a column, one word below the other, and its cells."""
    words = _PIECES.findall(column.name) if narrow else re.split("(?<! on) ", column.name)
    cells = [_stack([*map(escaped, words)], "r")]
    for text, value in zip(texts_of(table, column), table[column.name], strict=True):
        lines = [escaped(line) for line in (textwrap.wrap(text, 22) if narrow else [text])]
        if isinstance(value, MeanInterval):
            lines = [escaped(value.texts[0]), *(rf"{{\scriptsize {escaped(end)}}}" for end in value.texts[1:] if end)]
        cells.append(_stack(lines, "r" if isinstance(value, MeanInterval) else "l"))
    return cells


def _stack(lines: list[str], side: str) -> str:
    """Return the LaTeX of lines one below the other."""
    text = r"\\".join(lines)
    return rf"\shortstack[{side}]{{{text}}}" if len(lines) > 1 else text


def escaped(text: str) -> str:
    """Return the LaTeX that prints a text."""
    return visible(text).translate(_SPECIAL)
