"""The sections of a report, and the report as one self-contained HTML page with the record behind every number.

The page loads nothing from elsewhere, which its security policy forbids. `page.html` is its template, which escapes all
text; values that all records share are stored once.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from transfer.core.errors import visible_lines
from transfer.core.files import rendered
from transfer.records.grouping import weights_marks
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.figures.svg import Plot
from transfer.report.tables.table import RUN_COLUMNS, MeanInterval, Table, cell_text, is_missing, is_number
from transfer.report.tables.text import constant_columns, note_texts, values
from transfer.verify.bundle import PLACE_OPTIONS

FIRST_ROWS = 50
"""Number of rows of a table that are laid out at once; a click shows the others."""
UNBROKEN = r"\d (?=%|s\b|min\b|h\b)|[-+]?[\d.]+( points)? \[[^]]*\]"
"""Numbers with their unit or interval, which are not broken into lines."""
WIDE = 48
"""Number of characters of a cell beyond which its text wraps."""
LONGEST_VALUE = 2000
"""Number of characters of a value up to which it is embedded; longer values are in record.json alone."""


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A picture of a run, a query with the first images of its ranked list, or both."""

    about: str
    """Caption."""
    run_id: str
    ranked: Sequence[tuple[str, bool]] = ()
    """What each image is, and whether it shows the identity of the query."""
    address: str = ""
    """The picture as a data URL; empty without one."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Section of a report; fields that are None or empty are left out."""

    title: str
    table: Table | None = None
    """Table whose column in `RUN_COLUMNS`, if any, is shown last."""
    note: str = ""
    """Plain text, a paragraph per line; of a part that leads, the first line after an empty one is a headline."""
    reading: str = ""
    """How to read the section, in one or two sentences; shown on the page alone."""
    lead: bool = False
    """Whether it is part of the answer, with which the page begins."""
    folded: bool = False
    """Whether the page shows its title alone until it is opened."""
    plot: Plot | None = None
    exhibits: Sequence[Exhibit] = ()

    @property
    def paragraphs(self) -> list[str]:
        """The lines of the note that are not empty."""
        return [line for line in self.note.splitlines() if line.strip()]

    @property
    def slug(self) -> str:
        """The title in small letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "data"

    @property
    def file_name(self) -> str:
        """Name of files with its content, without suffix: whole words of the slug, at most 45 characters."""
        return self.slug if len(self.slug) <= 45 else self.slug[:46].rpartition("-")[0] or self.slug[:45]


def page(title: str, sections: Sequence[Section], runs: StoredRuns) -> str:
    """Return the page, with the records of `runs`. Other runs that a table names have no link.

    Args:
        title: heading of the page.
        sections: parts of the page.
        runs: whose records the page holds.
    """
    marks = {record.run_id: marks_of(record) for record in runs.records}
    folder = Path(__file__).parent
    style, script = (Markup((folder / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return rendered(
        folder / "page.html",
        title=title,
        parts=[(part, None if part.table is None else _laid_out(part.table, marks)) for part in sections],
        marks=marks,
        counts=sorted(Counter(chain.from_iterable(marks.values())).items()),
        facts=run_facts(runs.runs),
        policy=f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        blocks=_blocks,
        breakable=_breakable,
        drawing=_drawing,
    )


def _blocks(text: str) -> Iterator[tuple[bool, list[Markup]]]:
    """Yield the lines of a text in groups, with whether they are items of a list, which begin with "- "."""
    lines = filter(str.strip, text.splitlines())
    for listed, group in groupby(lines, key=lambda line: line.startswith("- ")):
        yield listed, [_inline(line.removeprefix("- ")) for line in group]


def _inline(line: str) -> Markup:
    """Return a line in which what stands between backticks is code, and numbers stay with their units."""
    marked = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(visible_lines(line)))).replace("Cost:", "<b>Cost:</b>")
    return Markup(re.sub(UNBROKEN, lambda number: number[0].replace(" ", "\u00a0"), marked))


def _breakable(name: str) -> Markup:
    """Return a name that may be broken after its underscores."""
    return escape(visible_lines(name)).replace("_", Markup("_<wbr>"))


def _drawing(plot: Plot, name: str) -> Markup:
    """Return the drawing of a figure, with ids that are unique on the page."""
    return Markup(re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", plot.svg))


class _Cell(NamedTuple):
    """A cell: its text, its class in the style sheet, the value that it is sorted by, and its runs by short names."""

    text: str = ""
    kind: str = ""
    exact: str | None = None
    runs: Sequence[tuple[str, str]] = ()


def _laid_out(table: Table, marks: dict[str, list[str]]) -> dict[str, Any]:
    """Return what the template shows of a table: the first rows, and the others, which are not laid out at once."""
    constant = constant_columns(table)
    names = sorted((name for name in table.names if name not in constant), key=lambda name: name in RUN_COLUMNS)
    digits = {column.name: column.significant_digits for column in table.columns}
    present = {name: [value for value in table[name] if value is not None] for name in names}
    numeric = [bool(present[name]) and all(map(is_number, present[name])) for name in names]
    columns = [
        _numbers(table[name], digits[name]) if numbers else [_text(name, value) for value in values(table, name)]
        for name, numbers in zip(names, numeric, strict=True)
    ]
    rows = []
    for cells in zip(*columns, strict=True):
        named_runs = (run for cell in cells for run, _ in cell.runs)
        of_row = set(chain.from_iterable(marks.get(run, ()) for run in named_runs))
        shown = [mark for mark in ("dirty", "smoke") if mark in of_row]
        first = cells[0]._replace(exact=cells[0].exact or cells[0].text) if shown else cells[0]
        rows.append({"marks": shown, "cells": [first, *cells[1:]]})
    return {
        "heads": [*zip(names, numeric, strict=True)],
        "first": rows[:FIRST_ROWS],
        "rest": rows[FIRST_ROWS:],
        "shared": ", ".join(f"{name} {value}" for name, value in constant.items() if value),
        "means": table.has_means,
        "notes": "\n".join(note_texts(table.notes)),
    }


def _numbers(column: Sequence[Any], digits: int | None) -> list[_Cell]:
    """Return the cells of a column of numbers with its significant digits.

    Without any these are whole numbers, else two decimals, or four digits if some are tiny.
    """
    numbers = [None if is_missing(value) else float(value) for value in column]
    whole = all(value is None or value.is_integer() for value in numbers)
    digits = digits or (4 if any(value and abs(value) < 0.01 for value in numbers) else None)
    form = ".0f" if whole else f".{digits}g" if digits else ".2f"
    texts = [("", "") if value is None else (format(value, form), f"{value:.10g}") for value in numbers]
    return [_Cell(shown, "n", None if shown == exact else exact) for shown, exact in texts]


def _text(name: str, value: Any) -> _Cell:
    """Return a cell of text, or with links to the runs that it names."""
    if name in RUN_COLUMNS and value:
        return _Cell(exact=" ".join(value), runs=[(run, run.rpartition("-")[2]) for run in value])
    shown = "" if value is None else cell_text(value)
    if isinstance(value, MeanInterval):  # the interval stays on one line
        shown = shown.replace(", ", ",\N{NO-BREAK SPACE}")
    return _Cell(shown, "w" if len(shown) > WIDE else "")


def marks_of(record: Record) -> list[str]:
    """Return the marks shown beside every number of a run: smoke, dirty, subset, those of its weights, breakdown."""
    return [*record.marks, *weights_marks([record], {}), *([] if record.status == "completed" else [record.status])]


def run_facts(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return the values of all records.

    Keys: `runs`, the ids; `marks`, the marks of each run; `facts`, a list of [group, name, values], with a value for
    each run, or one where it is the same for all: a text, or None for runs without the fact.
    """
    records = [run.record for run in runs]
    exports = {record.export: record.run_id for record in records if record.export}
    columns: dict[tuple[str, str], list[str | None]] = {}
    for place, record in enumerate(records):
        for group, values_of_group in _facts(record, exports).items():
            for name, text in _flat(values_of_group):
                columns.setdefault((group, name), [None for _ in records])[place] = text
    facts = [(*name, column if len({*column}) > 1 else column[:1]) for name, column in columns.items()]
    return {"runs": [record.run_id for record in records], "marks": list(map(marks_of, records)), "facts": facts}


def _facts(record: Record, exports: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return everything in a record except paths, in groups."""
    origin = {"weights": record.weights_id, "pretraining": exports.get(record.weights_id), "exported as": record.export}
    origin |= {f"pretraining {name}": value for name, value in record.origin.items()}
    ids = ("task", "task_version", "seed", "smoke", "subset", "primary", "config_digest", "run_key", "schema")
    return {
        "scores": record.scores,
        "outcome": {**record.outcome, "notes": "\n".join(map(str, record.notes))},
        "origin": {name: value for name, value in origin.items() if value is not None}
        | {"untrained": ", ".join(map(str, record.untrained))},
        "dataset": record.dataset,
        "backbone": record.backbone,
        "options": {name: value for name, value in record.options.items() if name not in PLACE_OPTIONS},
        "cost": record.cost,
        "environment": record.environment,
        "details": record.details,
        "identity": {name: getattr(record, name) for name in ids},
    }


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and texts of values, those in dicts under joined names."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key} ")
            continue
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        if len(shown) > LONGEST_VALUE:
            size = f"{len(value)} entries" if isinstance(value, list) else f"{len(shown)} characters"
            shown = f"{size}, in record.json"
        yield f"{prefix}{key}", shown or "none"
