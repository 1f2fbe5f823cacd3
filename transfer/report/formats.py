"""The formats of a report: its sections for a terminal, as Markdown and LaTeX, and as files that other programs read.

Imports pandas only to make such a file.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from transfer.core.errors import visible
from transfer.core.files import csv_text
from transfer.report.page.section_types import Section
from transfer.report.tables.table import RUN_COLUMNS, Table, plain_value, with_numbers
from transfer.report.tables.terminal import WIDTH, broken_lines, terminal
from transfer.report.tables.text import latex, markdown, notes_of_row, without_tags

if TYPE_CHECKING:
    import pandas as pd

DATA = ("csv", "parquet")
"""Formats that programs read: one table, with a name for each column."""
_TYPES = {"boolean": "boolean", "integer": "Int64", "floating": "float64", "mixed-integer-float": "float64"}
"""The type of a column, by that of its values; any other is of texts."""


def as_terminal(parts: Sequence[Section], *, ids: bool = False) -> str:
    """Return the tables of a report in lines of at most 100 characters; with `ids` they have the columns of run ids."""
    texts = []
    for part in parts:
        if part.table is None and part.plot is not None:
            continue
        texts.append(visible(f"## {part.title}"))
        if part.table is not None:
            texts.append(terminal(part.table.without(*(() if ids else RUN_COLUMNS))))
        lines = (broken_lines(visible(line), WIDTH, "  " * line.startswith("- ")) for line in part.paragraphs)
        told = "\n\n".join(map("\n".join, lines)).replace("\n\n- ", "\n- ")
        texts += [told] if told else []
    return "\n\n".join(texts)


def as_markdown(parts: Sequence[Section], *, ids: bool = False) -> str:
    """Return the tables of a report as Markdown, under titles; with `ids` they have the columns of run ids."""
    texts = []
    for part in parts:
        if part.table is not None or part.plot is None:
            table = [markdown(part.table.without(*(() if ids else RUN_COLUMNS)))] if part.table is not None else []
            texts += [f"## {without_tags(part.title)}", *table, *map(without_tags, part.paragraphs)]
    return "\n\n".join(texts)


def as_latex(parts: Sequence[Section], *, ids: bool = False) -> str:
    """Return the tables of a report in LaTeX for booktabs; titles and notes are comments."""
    texts = []
    for part in parts:
        if part.table is not None:
            title, *notes = (f"% {visible(line)}" for line in (part.title, *part.paragraphs))
            texts.append("\n".join([title, latex(part.table.without(*(() if ids else RUN_COLUMNS))), *notes]))
    return "\n\n".join(texts)


def data_frame(parts: Sequence[Section]) -> "pd.DataFrame":
    """Return the rows of all tables of a report as a data frame, whose columns have one type each.

    The first column, `table`, has the title of the table that a row is from, the last, `notes`, the notes on the row.
    """
    import pandas as pd

    rows = []
    for part in parts:
        table = with_numbers(part.table) if part.table else Table([], [])
        for place, row in enumerate(table.rows):
            cells = {name: plain_value(name, value) for name, value in row.items()}
            notes = "; ".join([*notes_of_row(table, place), *part.paragraphs])
            rows.append({"table": part.title, **cells, "notes": notes})
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "notes"]
    frame = pd.DataFrame(rows, columns=[*names, "notes"], dtype=object)
    kinds = {name: pd.api.types.infer_dtype(frame[name], skipna=True) for name in frame}
    return frame.astype({name: _TYPES.get(kind, "string") for name, kind in kinds.items()})


def file_content(frame: "pd.DataFrame", form: str) -> bytes:
    """Return the content of a file with the rows of a data frame, numbers with all their digits.

    Args:
        form: one of `DATA`. Missing values are empty in csv and null in parquet.
    """
    import pandas as pd

    if form == "parquet":
        return bytes(frame.to_parquet(None, index=False))
    times = frame.select_dtypes("datetimetz").columns
    frame = frame.assign(**{name: frame[name].map(pd.Timestamp.isoformat, "ignore") for name in times}).astype(object)
    return f"{csv_text([[*frame], *frame.where(frame.notna(), None).values.tolist()])}\n".encode()
