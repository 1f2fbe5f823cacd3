"""Tables in LaTeX, for the package booktabs."""

from backbones.errors import visible
from transfer.report.render.text import constant_columns, note_texts, texts_of, values
from transfer.report.tables.cell_values import MeanInterval
from transfer.report.tables.table import Column, Table, holds_number

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
"""LaTeX of the characters that have a meaning in LaTeX."""


def latex(table: Table) -> str:
    """Return an environment `tabular`: texts aligned left, numbers right, notes below as comments.

    What is the same in every row is one of the notes.
    """
    constant = constant_columns(table)
    above = ", ".join(f"{name} {value}" for name, value in constant.items() if value)
    table = table.without(*constant)
    columns = [_cells(table, column) for column in table.columns]
    alignment = "".join("r" if any(map(holds_number, values(table, column.name))) else "l" for column in table.columns)
    lines = [" & ".join(row) + r" \\" for row in zip(*columns, strict=True)]
    heading = " & ".join(_heading(column.name) for column in table.columns) + r" \\"
    body = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", heading, r"\midrule", *lines, r"\bottomrule"]
    notes = [f"% {visible(' '.join(note.split()))}" for note in note_texts(table.notes)]
    notes = [f"% In every row: {visible(' '.join(above.split()))}."] * bool(above) + notes
    return "\n".join([*body, r"\end{tabular}", *notes])


def _cells(table: Table, column: Column) -> list[str]:
    """Return the cells of a column."""
    plain = zip(texts_of(table, column), table[column.name], strict=True)
    return [_mean(*value.texts) if isinstance(value, MeanInterval) else escaped(text) for text, value in plain]


def _heading(name: str) -> str:
    """Return a column's heading, one word below the other, as a column of a paper is narrow."""
    words = name.split()
    return r"\shortstack[r]{" + r"\\".join(map(escaped, words)) + "}" if len(words) > 1 else escaped(name)


def _mean(mean: str, interval: str) -> str:
    return rf"{escaped(mean)} {{\scriptsize {escaped(interval)}}}" if interval else escaped(mean)


def escaped(text: str) -> str:
    """Return the LaTeX that prints a text."""
    return "".join(_SPECIAL.get(character, character) for character in visible(text))
