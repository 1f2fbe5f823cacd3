"""Tables in LaTeX, for the package booktabs."""

from transfer.report.render.text import note_texts, texts_of, values
from transfer.report.tables.table import Table, is_number

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
    """Return an environment `tabular`: texts aligned left, numbers right, notes below as comments."""
    columns = [texts_of(table, column) for column in table.columns]
    alignment = "".join("r" if any(map(is_number, values(table, column.name))) else "l" for column in table.columns)
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in zip(*columns, strict=True)]
    heading = " & ".join(escaped(column.name) for column in table.columns) + r" \\"
    body = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", heading, r"\midrule", *lines, r"\bottomrule"]
    notes = [f"% {' '.join(note.split())}" for note in note_texts(table.notes)]
    return "\n".join([*body, r"\end{tabular}", *notes])


def escaped(text: str) -> str:
    """Return the LaTeX that prints a text."""
    return "".join(_SPECIAL.get(character, character) for character in text)
