"""The text of a table's cell by the type of its value.

A module that defines further types of values registers their texts with `@cell_text.register`, and with
`@full_text.register` where CSV, which has no notes, needs a longer text.
"""

from functools import singledispatch
from typing import Any

from transfer.records.comparability import Comparability
from transfer.records.labels import content_label, value_label
from transfer.report.tables.cell_values import BreakdownRate, Endings, MeanInterval, Violation


@singledispatch
def cell_text(value: Any) -> str:
    """Return the text of a value that is not a number, for Markdown, terminals and HTML."""
    return str(value)


@singledispatch
def full_text(value: Any) -> str:
    """Return the text of a value for CSV, which must need no note; by default that of `cell_text`."""
    return cell_text(value)


@cell_text.register
def _(value: None) -> str:
    return ""


@cell_text.register
def _(value: bool) -> str:
    return value_label(value)


@cell_text.register
def _(value: tuple) -> str:  # type: ignore[type-arg]  # singledispatch reads the bare type
    return "; ".join(map(cell_text, value))


@cell_text.register
def comparability_text(group: Comparability) -> str:
    """Return the protocol fields in which a group of rows differs from other groups: "lr 0.05, epochs 20"."""
    fields = dict(group.fields)
    return content_label(fields, fields) or f"{', '.join(fields)} without effect"


@cell_text.register
def _(value: Endings) -> str:
    runs = [f"{count} {status}" for status, count in value.runs]
    return ", ".join([*runs, *(f"{count} {status} in pretraining" for status, count in value.pretraining)])


@cell_text.register
def _(value: BreakdownRate) -> str:
    interval = f" ({100 * value.low:.0f} to {100 * value.high:.0f} %)" if value.total > 1 else ""
    return f"{value.broken} of {value.total}{interval}" + f", {value.not_judged} not judged" * bool(value.not_judged)


@cell_text.register
def _(value: MeanInterval) -> str:
    return " ".join(filter(None, value.texts))


@cell_text.register
def _(value: Violation) -> str:
    return f"{', '.join(map(value_label, value.trained))} trained above {value.broken:g}, which did not"
