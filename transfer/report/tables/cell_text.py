"""How a value of a table's cell is put into words, by its type: the one place where a renderer turns facts into text.

A module whose values stand in cells registers their texts here: `@cell_text.register`, and `@full_text.register` where
a CSV, which has no notes, says more than a table for people.
"""

from functools import singledispatch
from typing import Any

from transfer.records.comparability import Comparability
from transfer.records.grouping import content_label


@singledispatch
def cell_text(value: Any) -> str:
    """Return the text of a value that is no number, for Markdown, terminals and HTML."""
    return str(value)


@singledispatch
def full_text(value: Any) -> str:
    """Return the text of a value for CSV, where nothing may be explained elsewhere; by default that of `cell_text`."""
    return cell_text(value)


@cell_text.register
def _(value: None) -> str:
    return ""


@cell_text.register
def _(value: tuple) -> str:
    return "; ".join(map(cell_text, value))


@cell_text.register
def _(value: Comparability) -> str:
    return value.letter


@full_text.register
def _(value: Comparability) -> str:
    return comparability_text(value)


def comparability_text(group: Comparability) -> str:
    """Return the fields of a protocol that tell a group of rows from others: "lr 0.05, epochs 20"."""
    fields = dict(group.fields)
    return content_label(fields, fields) or f"{', '.join(fields)} without effect"
