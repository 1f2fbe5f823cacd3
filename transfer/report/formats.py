"""The formats of a report: how each is chosen, and tables and runs as files that other programs read.

Imports pandas only to make such a file.
"""

import json
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from backbones.errors import UsageError
from backbones.runtime.csv_text import csv_text

if TYPE_CHECKING:
    import pandas as pd

    from transfer.report.tables.table import Table

Format = Literal["terminal", "markdown", "csv", "jsonl", "parquet", "latex", "html"]

SUFFIXES: dict[Format, tuple[str, ...]] = {
    "terminal": (),
    "markdown": (".md", ".markdown", ".txt"),
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet", ".pq"),
    "latex": (".tex",),
    "html": (".html", ".htm"),
}
"""Format -> the suffixes of its files."""
_INFINITE = (float("inf"), float("-inf"))
DATA: tuple[Format, ...] = ("csv", "jsonl", "parquet")
"""Formats that programs read: one table, with a name for each column."""


def chosen_format(named: Format | None, output: Path | None) -> Format:
    """Return the format of a report: the named one, or that of the suffix of its file, or else Markdown.

    Without a file it is text for a terminal.

    Args:
        named: value of `--format`.
        output: value of `--output`.

    Raises:
        UsageError: the suffix is that of another format, or of none; Parquet without a file.
    """
    if output is None:
        if named == "parquet":
            raise UsageError("--format parquet: a binary file; name it with --output")
        return named or "terminal"
    if named == "terminal":
        raise UsageError("--format terminal: for the screen; files are of --format markdown")
    suffix = output.suffix.lower()
    of_suffix = next((form for form, suffixes in SUFFIXES.items() if suffix in suffixes), None)
    if named and of_suffix and named != of_suffix:
        raise UsageError(
            f"--output {output}: {suffix} is a file of --format {of_suffix}, not of --format {named}; "
            f"leave out --format, or end the name in {SUFFIXES[named][0]}"
        )
    if suffix and named is None and of_suffix is None:
        known = ", ".join(suffixes[0] for suffixes in SUFFIXES.values() if suffixes)
        raise UsageError(f"--output {output}: no format has the suffix {suffix}; end it in {known}, or use --format")
    return named or of_suffix or "markdown"


def typed_frame(table: "Table") -> "pd.DataFrame":
    """Return a table as a data frame whose columns have one type each, also where values are missing.

    Types are boolean, Int64, float64 and string; a column of numbers and texts is of texts.
    """
    frame = table.to_frame()
    return frame.astype({name: _dtype(table[name]) for name in table.names})


def _dtype(cells: Sequence[Any]) -> str:
    from transfer.report.tables.table import is_missing, is_number

    values = [value for value in cells if not is_missing(value)]
    if values and all(isinstance(value, bool) for value in values):
        return "boolean"
    if not values or not all(map(is_number, values)):
        return "string"
    return "Int64" if all(isinstance(value, Integral) and abs(int(value)) < 2**63 for value in values) else "float64"


def file_content(frame: "pd.DataFrame", form: Format) -> bytes:
    """Return the content of a file with the rows of a data frame, numbers with all their digits.

    Args:
        form: one of `DATA`. Missing values are empty in csv and null in jsonl and parquet; jsonl has no infinity, so
            that it is null there.
    """
    if form == "parquet":
        return bytes(frame.to_parquet(None, index=False))
    names, rows = list(frame.columns), _plain_rows(frame)
    if form == "csv":
        return f"{csv_text([names, *rows])}\n".encode()
    lines = [
        {name: None if value in _INFINITE else value for name, value in zip(names, row, strict=True)} for row in rows
    ]
    return "".join(f"{json.dumps(line, ensure_ascii=False, allow_nan=False)}\n" for line in lines).encode()


def _plain_rows(frame: "pd.DataFrame") -> list[list[Any]]:
    """Return the values of each row as Python's own; None where one is missing, times in ISO 8601."""
    import pandas as pd

    columns = []
    for name in frame.columns:
        column = frame[name]
        values = [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]
        columns.append([value.isoformat() if isinstance(value, pd.Timestamp) else value for value in values])
    return [list(row) for row in zip(*columns, strict=True)]
