"""Rows as comma-separated values. Imports no torch."""

import csv
import io
from collections.abc import Iterable
from typing import Any


def csv_text(rows: Iterable[Iterable[Any]], quoting: Any = csv.QUOTE_MINIMAL) -> str:
    """Return rows as comma-separated values, without the last line's end."""
    text = io.StringIO()
    csv.writer(text, quoting=quoting, lineterminator="\n").writerows(rows)
    return text.getvalue().rstrip("\n")
