"""Rows as comma-separated values, neutralised: spreadsheets run what begins like a formula. Imports no torch."""

import csv
import io
from collections.abc import Iterable
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that spreadsheets run as a formula."""


def csv_text(rows: Iterable[Iterable[Any]], quoting: Any = csv.QUOTE_MINIMAL) -> str:
    """Return rows as comma-separated values; a spreadsheet takes no text for a formula, see `_harmless`."""
    lines = []
    for row in rows:
        line = io.StringIO()
        # texts with a character of the line's end are quoted: a bare CR would begin a row, and a formula, in a text
        csv.writer(line, quoting=quoting, lineterminator="\r\n").writerow(map(_harmless, row))
        lines.append(line.getvalue().removesuffix("\r\n"))
    return "\n".join(lines).rstrip("\n")


def _harmless(value: Any) -> Any:
    """Return a cell with ' before a text that a spreadsheet would run as a formula; texts of numbers stay."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
