"""What is written of claims: the table with their verdicts, the sections of its page, and the document of a study.

The document is in Markdown (`study.md` is its template), from the file of claims and the records. The same records and
claims give the same text and the same data of figures, on any machine.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from transfer.core.errors import visible_lines
from transfer.core.files import check_writable, rendered, write_atomic
from transfer.experiments.claims import Claims
from transfer.records.run_set import RunSet
from transfer.report.claims.figures import claim_plot
from transfer.report.claims.findings import Result, verdict_counts
from transfer.report.figures.svg import on_white
from transfer.report.page.section_types import Section
from transfer.report.tables.table import RUN, SIGNIFICANT, Column, Note, Table, cell_text, with_numbers
from transfer.report.tables.text import csv, markdown, without_tags

RULE = "verdicts are by the rule of each row, and are not corrected for the number of rows"
DETAIL = {
    **{"claim": -1, "verdict": -1, "unit": 1},
    **dict.fromkeys(("comparison", "margin", "detectable", "comparisons"), 2),
    **dict.fromkeys(("registered", "predicted hours", "kind", "expect", "where"), 3),
}
"""How soon a narrow terminal does without a column."""
SHOWN = ("id", "claim", "effect", "verdict", "n", "hours")
"""Columns of the table of claims in the document; the file of its data has all."""


def claim_table(results: Sequence[Result], runs: RunSet) -> Table:
    """Return a row for each claim: effect with its 95 % interval, verdict, n, and hours.

    Columns:
        `effect`: with its interval, of the comparison that supports the claim least, a less b, in `unit`;
        `verdict`: support, contradiction, undecided, or what stands in its place;
        `hours`: of the runs and of the trainings that their weights come from, of GPUs, or of cores on CPUs;
        `detectable`: difference that such runs show four times in five; `registered`: as the row predicted it;
        `predicted hours`: as the row predicted them.
    """
    rows = []
    for result in results:
        claim, shown, of = result.claim, result.shown, len(result.findings)
        rows.append(
            {
                "id": claim.id,
                "claim": claim.claim,
                "effect": shown.effect,
                "verdict": result.verdict_text,
                "n": shown.n or None,
                "hours": result.hours(runs) or None,
                "comparison": shown.name,
                "comparisons": of if of > 1 else None,
                "unit": shown.unit or None,
                "margin": claim.margin,
                "detectable": shown.detectable,
                "registered": claim.detectable,
                "predicted hours": claim.hours,
                "kind": claim.kind or None,
                "expect": claim.expect or None,
                "where": claim.where,
                "changed": "; ".join(f"{one['date']}: {one['what']}" for one in claim.changed) or None,
                RUN: tuple(sorted(result.records)),
            }
        )
    columns = [Column(name, significant_digits=SIGNIFICANT, detail=DETAIL.get(name, 0)) for name in rows[0]]
    notes = [Note(text, one.claim.id, (place,)) for place, one in enumerate(results) for text in one.remarks]
    return Table.from_rows(rows, columns, [Note(RULE), *notes]).without_empty()


def claim_sections(title: str, results: Sequence[Result], runs: RunSet, *, plots: bool = False) -> Iterator[Section]:
    """Yield the table of all claims, then the comparisons of each that has several, and with `plots` their figures."""
    table = claim_table(results, runs)
    yield Section(title=title, table=table, note=f"{len(results)} claims: {verdict_counts(results)}.")
    for result in results:
        rows = comparison_table(result) if len(result.findings) > 1 else None
        plot = claim_plot(result) if plots else None
        if rows or plot:
            yield Section(title=f"{result.claim.id}: {result.claim.claim}", table=rows, plot=plot)


def comparison_table(result: Result) -> Table:
    """Return a row for each comparison of a claim."""
    rows = []
    for one in result.findings:
        mean_a, mean_b = one.means if len(one.means) == 2 else (None, None)
        rows.append(
            {"a": one.a, "b": one.b or None, "mean a": mean_a, "mean b": mean_b, "effect": one.effect}
            | {"verdict": one.verdict, "n": one.n or None, "detectable": one.detectable}
            | {RUN: tuple(record.run_id for record in one.records)}
        )
    columns = [Column(name, significant_digits=SIGNIFICANT) for name in rows[0]]
    return Table.from_rows(rows, columns).without_empty()


def write_document(file: Path, read: Claims, results: Sequence[Result], runs: RunSet) -> list[Path]:
    """Write the document, and beside it a folder of its name with the table and the figures' data as CSV, and figures.

    Returns:
        The files.
    """
    folder, figures = file.with_suffix(""), dict[str, str]()
    table = claim_table(results, runs)
    compared = [{"id": one.claim.id, **row} for one in results if one.findings for row in comparison_table(one).rows]
    contents = {folder / "claims.csv": _data(table), folder / "comparisons.csv": _data(Table.from_rows(compared))}
    for result in results:
        if plot := claim_plot(result):
            name = Section(title=result.claim.id).file_name
            contents |= {folder / f"{name}.svg": on_white(plot), folder / f"{name}.csv": plot.csv.encode()}
            figures[result.claim.id] = f"{folder.name}/{name}.svg"
    records = {name: record for one in results for name, record in one.records.items()}.values()
    facts = {
        "commit": {str(one.environment.get("git") or "not recorded")[:12] for one in records},
        "device": {str(one.environment.get("device")) for one in records},
        "task version": {f"{one.task} {one.task_version}" for one in records},
    }
    text = rendered(
        Path(__file__).with_name("study.md"),
        lambda text: without_tags(visible_lines(text)),
        read=read,
        results=results,
        runs=runs,
        figures=figures,
        verdicts=verdict_counts(results),
        table=_linked(table),
        records=records,
        facts=facts,
        comparisons=lambda result: markdown(comparison_table(result).without(RUN)),
        cell_text=cell_text,
    )
    contents[file] = (re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n").encode()
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


def _linked(table: Table) -> str:
    """Return the table of claims with links to their sections."""
    rows = []
    for row in table.rows:  # as Markdown makes the anchor of a heading
        anchor = re.sub(r"[^\w-]", "", row["id"].lower().replace(" ", "-"))
        rows.append(row | {"id": f"[{row['id']}](#{anchor})"})
    return markdown(Table(table.columns, rows).select([name for name in SHOWN if name in table]))
