"""The document of a study in Markdown (`study.md` is its template), from the file of claims and the records.

The same records and claims give the same text and the same data of figures, on any machine.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transfer.core.errors import visible_lines
from transfer.core.files import check_writable, rendered, write_atomic
from transfer.experiments.claims import Claims
from transfer.records.run_set import RunSet
from transfer.report.claims.figures import claim_plot
from transfer.report.claims.findings import Result
from transfer.report.claims.table import claim_table, comparison_rows, interval, reasons, verdict_counts, verdict_text
from transfer.report.figures.svg import on_white
from transfer.report.page.section_types import Section
from transfer.report.tables.table import RUN, Table, cell_text, with_numbers
from transfer.report.tables.text import csv, markdown, without_tags

SHOWN = ("id", "claim", "effect", "verdict", "n", "hours")
"""Columns of the table of claims in the document; the file of its data has all."""


def write_document(file: Path, read: Claims, results: Sequence[Result], runs: RunSet) -> list[Path]:
    """Write the document, and beside it a folder of its name with the table and the figures' data as CSV, and figures.

    Returns:
        The files.
    """
    folder = file.with_suffix("")
    contents: dict[Path, bytes] = {}
    figures: dict[str, str] = {}
    for result in results:
        if plot := claim_plot(result):
            name = Section(title=result.claim.id).file_name
            contents[folder / f"{name}.svg"] = on_white(plot)
            contents[folder / f"{name}.csv"] = plot.csv.encode()
            figures[result.claim.id] = f"{folder.name}/{name}.svg"
    contents[folder / "claims.csv"] = _data(claim_table(results, runs))
    compared = [{"id": one.claim.id, **row} for one in results if one.findings for row in comparison_rows(one).rows]
    contents[folder / "comparisons.csv"] = _data(Table.from_rows(compared))
    contents[file] = _text(read, results, runs, figures).encode()
    check_writable(folder, "--document")
    for path, content in contents.items():
        write_atomic(path, content, flag="--document")
    return [*contents]


def _data(table: Table) -> bytes:
    """Return a table as CSV, floats with six digits, in which no machine's rounding shows."""
    table = with_numbers(table)
    rows = [
        {key: f"{cell:.6g}" if isinstance(cell, float) else cell for key, cell in row.items()} for row in table.rows
    ]
    return f"{csv(replace(table, rows=rows))}\n".encode()


def _text(read: Claims, results: Sequence[Result], runs: RunSet, figures: dict[str, str]) -> str:
    table = claim_table(results, runs)
    rows = [row | {"id": f"[{row['id']}](#{_anchor(row['id'])})"} for row in table.rows]
    used = {run.record.run_id: run.record for result in results for one in result.findings for run in one.runs}
    made = {
        "commit": {str(record.environment.get("git") or "not recorded")[:12] for record in used.values()},
        "device": {str(record.environment.get("device")) for record in used.values()},
        "task version": {f"{record.task} {record.task_version}" for record in used.values()},
    }
    text = rendered(
        Path(__file__).with_name("study.md"),
        lambda text: without_tags(visible_lines(text)),
        read=read,
        results=results,
        runs=runs,
        figures=figures,
        verdicts=verdict_counts(results),
        table=markdown(Table(table.columns, rows).select([name for name in SHOWN if name in table])),
        used=len(used),
        facts="; ".join(f"{name} {', '.join(sorted(values))}" for name, values in made.items() if values),
        interval=lambda one, result: cell_text(interval(one, result)),
        verdict_text=verdict_text,
        comparisons=lambda result: markdown(comparison_rows(result).without(RUN)),
        reasons=reasons,
        number=_number,
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2g}"


def _anchor(title: str) -> str:
    """Return the anchor that Markdown gives to a heading."""
    return "".join(one for one in title.lower().replace(" ", "-") if one.isalnum() or one in "-_")
