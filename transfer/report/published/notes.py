"""What stands below a published table: its own notes, rules, and long lists of what differs. Imports no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from transfer.published.rows import PublishedTable, read_paper
from transfer.published.verdicts import Kind
from transfer.records.labels import letter
from transfer.report.published.differences import Reason
from transfer.report.published.own_runs import RULE

REASONS = "not comparable because"
"""The column of what differs."""
MOST_REASONS = 4
"""In a line of the table; more of them go into a note."""


def table_notes(table: PublishedTable) -> list[str]:
    """What is to be said of a table, and of its rows, whatever was run."""
    paper = read_paper(table.paper)
    notes = [f"{paper.title} ({paper.source}), {table.called}: {table.title}." + " In percent." * bool(table.rows)]
    notes += [*paper.notes, *table.notes]
    for row in table.rows:
        notes += [f"{row.label}: for reference only: {row.reference}"] if row.reference else []
        notes += [
            f"{row.label}, {value.dataset}, {value.name}: printed {value.printed}, never compared: {value.doubt}"
            for value in row.values
            if value.doubt
        ]
    return notes


def rules_of(lines: Sequence[Mapping[str, Any]], margin: float) -> list[str]:
    """How verdicts are made and configurations chosen, where there are any."""
    compared = any(line["judged"] and line["judged"].kind is not Kind.NOT_COMPARABLE for line in lines)
    said = "lies within that, half the last printed digit counted (docs/concepts/statistics.md); "
    said += "the printed number has no seeds"
    rule = f"agrees within {margin:g}: the interval of own - published at 90 % (two one-sided tests at 5 %) {said}"
    return [rule] * compared + [RULE] * any(line["others"] for line in lines)


def folded(lines: Sequence[dict[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """Writes the reasons into the lines, long lists of options under letters that notes explain.

    Returns the notes, and the texts of lines with letters in full.
    """
    letters: dict[str, str] = {}
    in_full: dict[str, str] = {}
    for line in lines:
        reasons: Sequence[Reason] = line["reasons"]
        options = [reason.text for reason in reasons if reason.option]
        line[REASONS] = "; ".join(reason.text for reason in reasons)
        if len(reasons) > MOST_REASONS and options:
            text = "; ".join(options)
            name = letters.setdefault(text, letter(len(letters)))
            others = [reason.text for reason in reasons if not reason.option]
            short = "; ".join([*others, f"{len(options)} options: {name}"])
            in_full[short], line[REASONS] = "; ".join([*others, text]), short
    return [f"{name}: {text} (in brackets the table's)" for text, name in letters.items()], in_full
