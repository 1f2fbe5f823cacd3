"""The formats of a report: its sections for a terminal, as Markdown and LaTeX, and as files that other programs read.

Imports pandas only to make such a file.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from transfer.core.errors import visible, visible_lines
from transfer.core.files import csv_text
from transfer.records.run_set import StoredRuns
from transfer.report.page.html import Section, page
from transfer.report.tables.table import RUN_COLUMNS, Table, plain_value, with_numbers
from transfer.report.tables.text import WIDTH, broken_lines, latex, markdown, note_texts, terminal, without_tags

if TYPE_CHECKING:
    import pandas as pd

DATA = ("csv", "parquet")
"""Formats that programs read: one table, with a name for each column."""
_TYPES = {"boolean": "boolean", "integer": "Int64", "floating": "float64", "mixed-integer-float": "float64"}
"""The type of a column, by that of its values; any other is of texts."""


def content(parts: Sequence[Section], form: str, title: str, runs: StoredRuns, *, ids: bool = False) -> bytes:
    """Return a report in any of its formats, with the problems of `runs` below the first table.

    Args:
        title: title of a page.
        runs: runs whose records a page has.
    """
    problems = [f"a run was not counted: {problem}" for problem in runs.problems]
    first = next((part for part in parts if part.table), None)
    parts = [replace(part, note="\n".join([part.note, *problems])) if part is first else part for part in parts]
    if form in DATA:
        return file_content(data_frame(parts), form)
    if form == "html":
        return page(title, parts, runs).encode()
    return visible_lines(as_text(parts, form, ids=ids)).encode()


def as_text(parts: Sequence[Section], form: str, *, ids: bool = False) -> str:
    """Return the tables of a report as text under their titles, with their paragraphs.

    Args:
        parts: sections; those of a figure alone are left out.
        form: terminal (lines of at most 100 characters), markdown, or latex (for booktabs; titles and notes are
            comments, and sections without a table are left out).
        ids: whether tables have the columns of run ids.
    """
    texts = []
    for part in parts:
        if part.table is None and (part.plot is not None or form == "latex"):
            continue
        tables = [] if part.table is None else [part.table.without(*(() if ids else RUN_COLUMNS))]
        if form == "latex":
            title, *comments = [f"% {visible(line)}" for line in (part.title, *part.paragraphs)]
            texts.append("\n".join([title, *map(latex, tables), *comments]))
        elif form == "markdown":
            texts += [f"## {without_tags(part.title)}", *map(markdown, tables), *map(without_tags, part.paragraphs)]
        else:
            texts += [visible(f"## {part.title}"), *map(terminal, tables)]
            texts += [_wrapped(part.paragraphs)] if part.paragraphs else []
    return "\n\n".join(texts)


def _wrapped(paragraphs: Sequence[str]) -> str:
    """Return paragraphs for a terminal: an empty line before each but items of a list, which begin with "- "."""
    texts = []
    for paragraph in paragraphs:
        indent = "  " if paragraph.startswith("- ") else ""
        texts.append("\n".join(broken_lines(visible(paragraph), WIDTH, indent)))
    return "\n\n".join(texts).replace("\n\n- ", "\n- ")


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
            notes = "; ".join([*note_texts(table.take([place]).notes), *part.paragraphs])
            rows.append({"table": part.title, **cells, "notes": notes})
    names = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name != "notes"]
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
