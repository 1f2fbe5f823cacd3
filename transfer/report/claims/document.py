"""The document of a study in Markdown, from the file of claims and the records: a table, then a section for each claim.

The same records and claims give the same text and the same data of figures, on any machine.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from transfer.core.files import check_writable, write_atomic
from transfer.experiments import claims as kinds
from transfer.experiments.claims import Claims
from transfer.records.run_set import RunSet
from transfer.report.claims.figures import claim_plot
from transfer.report.claims.findings import NO_VERDICT, NOT_RUN, Result
from transfer.report.claims.table import claim_table, comparison_rows, interval, reasons, verdict_text
from transfer.report.figures.svg import on_white
from transfer.report.page.section_types import Section
from transfer.report.tables.table import RUN, Table, cell_text, with_numbers
from transfer.report.tables.text import csv, markdown, without_tags
from transfer.statistics.effects import VERDICTS

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
    contents[file] = ("\n\n".join(without_tags(part) for part in _parts(read, results, runs, figures)) + "\n").encode()
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


def _parts(read: Claims, results: Sequence[Result], runs: RunSet, figures: dict[str, str]) -> Iterator[str]:
    """Yield the paragraphs of the document."""
    yield f"# {read.title}"
    yield read.about
    counts = Counter(result.verdict for result in results)
    told = ", ".join(f"{counts[name]} {name}" for name in (*VERDICTS, NO_VERDICT, NOT_RUN) if counts[name])
    yield f"Of {len(results)} claims: {told}. The rules are those of `{read.source.name}`, whose history dates them."
    if read.limits:
        yield f"**Limits.** {read.limits}"
    yield "## Claims"
    table = claim_table(results, runs)
    rows = [row | {"id": f"[{row['id']}](#{_anchor(row['id'])})"} for row in table.rows]
    table = Table(table.columns, rows).select([name for name in SHOWN if name in table])
    yield markdown(table)
    yield (
        "Effects are a less b with their 95 % intervals: of scores and failure shares in percentage points, of largest"
        " stable rates a ratio, of correlations Spearman's. Of several comparisons the one that supports the claim"
        " least is shown. Hours are those of GPUs, or of cores on CPUs, pretraining included."
    )
    yield from _provenance(results, runs)
    for result in results:
        yield from _section(result, runs, figures.get(result.claim.id, ""))


def _provenance(results: Sequence[Result], runs: RunSet) -> Iterator[str]:
    """Yield what all runs behind the claims were made with."""
    used = {run.record.run_id: run.record for result in results for one in result.findings for run in one.runs}
    facts = {
        "commit": {str(record.environment.get("git"))[:12] for record in used.values()},
        "device": {str(record.environment.get("device")) for record in used.values()},
        "task version": {f"{record.task} {record.task_version}" for record in used.values()},
    }
    if used:
        told = "; ".join(f"{name} {', '.join(sorted(values))}" for name, values in facts.items())
        yield f"{len(used)} runs stand behind these claims: {told}."


def _section(result: Result, runs: RunSet, figure: str) -> Iterator[str]:
    """Yield the section of a claim: question, rule, figure, numbers, command, limits, reading."""
    claim, shown = result.claim, result.shown
    yield f"## {claim.id}\n\n**{claim.claim}** ({claim.where})"
    if result.verdict == NOT_RUN:
        missing = claim.not_run
        yield f"Not run: {missing['why']} Price: {missing['gpu_hours']:g} GPU hours."
        yield f"```sh\n{missing['command']}\n```"
        return
    yield _rule(result)
    if figure:
        yield f"![{claim.id}: {claim.claim}]({figure})"
    if found := interval(shown, result):
        compared = f"{shown.a} vs. {shown.b}" if shown.b else shown.a
        effect = f"{cell_text(found)} {shown.unit}".strip()
        yield f"`{compared}`: {effect}, n {shown.n}. **{verdict_text(result)}**."
    else:
        yield f"**{verdict_text(result)}**."
    if len(result.findings) > 1:
        yield markdown(comparison_rows(result).without(RUN))
    if notes := reasons(result):
        yield "\n".join(f"- {note}" for note in notes)
    yield from _registered(result, runs)
    if claim.commands:
        yield "```sh\n{}\n```".format("\n".join(claim.commands))
    if claim.limits:
        yield f"Limits: {claim.limits}"
    if reading := claim.reading.get(result.verdict, claim.reading.get("", "")):
        yield reading


def _rule(result: Result) -> str:
    """Return the rule of a row in words."""
    claim = result.claim
    of = f" of `{claim.metric}`" if claim.metric else ""
    of += f" with `{claim.against}`" if claim.against else ""
    parts = [f"Rule: {claim.kind}{of}, expected {claim.expect}"]
    parts += [f"smallest relevant effect {claim.margin:g}"] if claim.margin is not None else []
    parts += [f"`{claim.choose}` of each variant by `{claim.chosen_by}`"] if claim.choose else []
    parts += [f"over `{claim.over}`"] if claim.over else []
    parts += [
        f"values {', '.join(f'{value:g}' if isinstance(value, float) else str(value) for value in claim.grid)}"
    ] * bool(claim.grid)
    parts += [f"failed below {claim.broken_below:g} of the best score"] if claim.broken_below is not None else []
    parts += [f"{claim.seeds} seeds, {claim.needs} at least"] if claim.kind != kinds.COUNT else []
    told = f" Runs: `{claim.runs}`." if claim.runs else ""
    return f"{'; '.join(parts)}.{told}"


def _registered(result: Result, runs: RunSet) -> Iterator[str]:
    """Yield what the row predicted beside what was found, and its later changes."""
    claim, found = result.claim, result.shown.detectable
    parts = []
    if claim.detectable is not None or found is not None:
        values = [f"{_number(claim.detectable)} registered", f"{_number(found)} with these runs"]
        parts.append(f"Minimum detectable difference (80 % power): {', '.join(values)}.")
    if claim.hours is not None:
        parts.append(f"Hours: {claim.hours:g} predicted, {result.hours(runs):.2g} used.")
    if parts:
        yield " ".join(parts)
    for one in claim.changed:
        yield f"Changed {one['date']}: {one['what']}."


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2g}"


def _anchor(title: str) -> str:
    """Return the anchor that Markdown gives to a heading."""
    return "".join(one for one in title.lower().replace(" ", "-") if one.isalnum() or one in "-_")
