"""Names from files, made safe: a terminal obeys control characters, a spreadsheet formulas. Imports no torch."""

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that spreadsheets run as a formula."""
LONGEST_LINE = 2000
"""The most characters of a line of an error; a value of a user's file may be far longer."""


def visible(text: str) -> str:
    """Return a text with control characters, those of writing direction too, as `\\x1b`."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """Return a text of several lines with all other control characters made visible."""
    return "\n".join(map(visible, text.split("\n")))


def short_lines(text: str) -> str:
    """Return a text whose lines end after so many characters, and say how many more there are."""
    return "\n".join(
        line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ... ({len(line) - LONGEST_LINE} more characters)"
        for line in text.split("\n")
    )


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
