"""Columns and notes that several tables have in common."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from transfer.records.grouping import Group, Grouping
from transfer.records.record import Record
from transfer.report.tables.table import RUN, SIGNIFICANT, Column, Note, Table, is_missing

_OF_SIZES = re.compile(r"_(AP[sml]|AR\w*)$")
WITH_BREAKDOWNS = "with breakdowns"
"""Suffix of the name of a score's column in which trainings that broke down count as chance."""
OF_GROUP = ("dataset", "backbone", "pretraining", "protocol")
"""Columns that identify the configuration of a row."""


def group_cells(group: Group) -> dict[str, Any]:
    """Return the cells that identify the configuration of a row."""
    return {name: getattr(group, name) for name in OF_GROUP}


def run_ids(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """Return the cell with the ids of a row's runs."""
    return {RUN: tuple(record.run_id for record in records)}


def grouping_notes(grouping: Grouping) -> list[Note]:
    """Return the notes that explain the letters of comparability groups."""
    return [Note("equal in", group=group) for group in grouping.comparability.groups]


def unjudged_note(records: Sequence[Record]) -> list[Note]:
    """Return the note on trainings that were not judged, with the reasons; empty without any."""
    reasons = dict.fromkeys(record.reason for record in records if record.not_judged)
    text = f"counted neither as trained nor as broken down: {'; '.join(reasons)}"
    count = sum(record.not_judged for record in records)
    return [Note(text, f"{count} of {len(records)} trainings not judged")] if reasons else []


def score_columns(records: Sequence[Record]) -> list[Column]:
    """Return the columns of the records' scores, their standard deviations and standard errors."""
    columns = []
    for record in records:
        for name in record.scores:
            detail = _detail(name, record.primary)
            columns += [Column(name, detail=detail), Column(f"{name} {WITH_BREAKDOWNS}", detail=detail + 1)]
            columns += [Column(f"{name} {ending}", detail=detail + 2) for ending in ("sd", "se")]
    return columns


def _detail(name: str, primary: str) -> int:
    """Return how early a narrow terminal does without a score: the primary one last, sizes and AR first."""
    if name in (primary, "mask_AP"):
        return int(name != primary)
    return 5 if _OF_SIZES.search(name) else 4


def significant(names: Iterable[str]) -> list[Column]:
    """Return columns whose values are shown with four significant digits."""
    return [Column(name, significant_digits=SIGNIFICANT) for name in names]


def without_unused(table: Table) -> Table:
    """Return the table without empty columns of pretraining, protocol, deviations and scores with breakdowns."""
    endings = (" sd", f" {WITH_BREAKDOWNS}")
    unused = [name for name in table.names if name in ("pretraining", "protocol") or name.endswith(endings)]
    return table.without(*(name for name in unused if all(map(is_missing, table[name]))))
