"""What is written of claims: the table with their verdicts, the sections of its page, figures, the document of a study.

The document is in Markdown (`study.md` is its template), from the file of claims and the records. The same records and
claims give the same text and the same data of figures, on any machine.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from transfer.core.errors import visible_lines
from transfer.core.files import check_writable, csv_text, rendered, write_atomic
from transfer.core.grouped import grouped_by
from transfer.experiments import claims as kinds
from transfer.experiments.claims import Claims
from transfer.records.run_set import StoredRuns
from transfer.report.claims.findings import BEST_FIRST, ClaimResult, Finding, Point, hours_of, verdict_counts
from transfer.report.figures import svg
from transfer.report.page.html import Section
from transfer.report.tables.columns import run_ids
from transfer.report.tables.table import RUN, SIGNIFICANT, Column, Note, Table, with_numbers
from transfer.report.tables.text import csv, markdown, without_tags
from transfer.statistics.verdicts import CONTRADICTION, NO_EFFECT, SUPPORT

OWN_ROWS = "The suite's own rows"
RULE_NOTE = "verdicts are by the rule of each row, and are not corrected for the number of rows"
DETAIL = {"claim": -1, "verdict": -1, "unit": 1}
DETAIL |= dict.fromkeys(("comparison", "margin", "detectable", "comparisons"), 2)
DETAIL |= dict.fromkeys(("registered", "predicted hours", "kind", "expect", "where", "own", "reason"), 3)
"""How soon a narrow terminal does without a column."""
DOCUMENT_COLUMNS = ("id", "claim", "effect", "unit", "verdict", "n", "hours")
"""Columns of the table of claims in the document; the file of its data has all."""
ROW_INCHES = 0.27
"""Height of a row in inches."""
LOOKS = {SUPPORT: svg.OKABE_ITO[2], CONTRADICTION: svg.OKABE_ITO[1]}
"""Color of an effect by its verdict; of any other it is gray."""


def claim_table(results: Sequence[ClaimResult], runs: StoredRuns) -> Table:
    """Return a row for each claim: effect with its 95 % interval, verdict, n, and hours.

    Columns:
        `effect`: with its interval, of the comparison that supports the claim least, a less b, in `unit`;
        `verdict`: support, contradiction, undecided, or what stands in its place;
        `hours`: of the runs and of the trainings that their weights come from, of GPUs, or of cores on CPUs;
        `detectable`: difference that such runs show four times in five; `registered`: as the row predicted it;
        `predicted hours`: as the row predicted them.
    """
    rows, notes = list[dict[str, Any]](), [Note(RULE_NOTE)]
    for place, result in enumerate(results):
        claim, shown, comparisons = result.claim, result.shown, len(result.findings)
        rows.append(
            {
                "id": claim.id,
                "claim": claim.claim,
                "effect": shown.effect,
                "verdict": result.verdict_text,
                "n": shown.n or None,
                "hours": hours_of(result.records, runs),
                "comparison": shown.name,
                "comparisons": comparisons if comparisons > 1 else None,
                "unit": shown.unit or None,
                "margin": claim.margin,
                "detectable": shown.detectable,
                "registered": claim.detectable,
                "predicted hours": claim.hours,
                **{name: getattr(claim, name) or None for name in ("kind", "expect", "where")},
                "own": claim.own or None,
                "reason": "; ".join(finding.why for finding in result.findings if finding.why) or None,
                "changed": "; ".join(map(_described, claim.changed)) or None,
                RUN: tuple(sorted(result.records)),
            }
        )
        texts = [*result.remarks, *map(_described, claim.changed)]
        if claim.commands and result.verdict not in (SUPPORT, NO_EFFECT, CONTRADICTION):
            texts.append(f"to settle it: {', then '.join(f'`{command}`' for command in claim.commands)}")
        notes += [Note(text, claim.id, (place,)) for text in texts]
    return _table(rows, notes)


def _table(rows: Sequence[dict[str, Any]], notes: Sequence[Note] = ()) -> Table:
    digits = {name: 2 if "hours" in name else SIGNIFICANT for name in rows[0]}
    columns = [Column(name, significant_digits=digits[name], detail=DETAIL.get(name, 0)) for name in digits]
    return Table.from_rows(rows, columns, notes).without_empty()


def claim_sections(
    title: str, results: Sequence[ClaimResult], runs: StoredRuns, *, plots: bool = False
) -> Iterator[Section]:
    """Yield the tables of claims and of own rows, then each one's comparisons if several, and with `plots` figures."""
    for name, is_own in ((title, False), (OWN_ROWS, True)):
        if rows := [result for result in results if result.claim.own == is_own]:
            yield Section(title=name, table=claim_table(rows, runs), note=f"Claims: {verdict_counts(rows)}.")
    for result in results:
        table = findings_table(result.findings) if len(result.findings) > 1 else None
        plot = claim_plot(result) if plots else None
        if table or plot:
            yield Section(title=f"{result.claim.id}: {result.claim.claim}", table=table, plot=plot)


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return a row for each comparison of a claim."""
    rows = []
    for finding in findings:
        mean_a, mean_b = finding.means if len(finding.means) == 2 else (None, None)
        rows.append(
            {
                "a": finding.a,
                "b": finding.b or None,
                "mean a": mean_a,
                "mean b": mean_b,
                "effect": finding.effect,
                "unit": finding.unit or None,
                "verdict": finding.verdict,
                "n": finding.n or None,
                "detectable": finding.detectable,
                **run_ids(finding.records),
            }
        )
    return _table(rows)


def write_document(file: Path, read: Claims, results: Sequence[ClaimResult], runs: StoredRuns) -> list[Path]:
    """Write the document, and beside it a folder of its name with the table and the figures' data as CSV, and figures.

    Returns:
        The files.
    """
    folder, figures = file.with_suffix(""), dict[str, str]()
    table = claim_table(results, runs)
    evaluated = [result for result in results if result.is_evaluated]
    compared = list[dict[str, Any]]()
    for result in results:
        rows = findings_table(result.findings).rows if result.findings else []
        compared += [{"id": result.claim.id, **row} for row in rows]
    contents = {folder / "claims.csv": _data(table), folder / "comparisons.csv": _data(Table.from_rows(compared))}
    for result in evaluated:
        if plot := claim_plot(result):
            name = Section(title=result.claim.id).file_name
            contents |= {folder / f"{name}.svg": svg.on_white(plot), folder / f"{name}.csv": plot.csv.encode()}
            figures[result.claim.id] = f"{folder.name}/{name}.svg"
    text = rendered(
        Path(__file__).with_name("study.md"),
        lambda text: without_tags(visible_lines(text)),
        read=read,
        results=results,
        evaluated=evaluated,
        figures=figures,
        records=dict(chain.from_iterable(result.records.items() for result in evaluated)),
        hours=lambda records: hours_of(records, runs),
        counts=verdict_counts,
        papers=[result for result in results if not result.claim.own],
        own=[result for result in results if result.claim.own],
        table=lambda shown: _verdicts(table, results, shown),
        comparisons=lambda result: markdown(
            findings_table([finding for finding in result.findings if finding.effect]).without(RUN)
        ),
        brief=_brief,
        missing=_missing,
        problems=runs.problems,
    )
    contents[file] = (re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n").encode()
    check_writable(folder, "--document")
    for path, content in contents.items():
        write_atomic(path, content, flag="--document")
    return [*contents]


def _missing(result: ClaimResult) -> str:
    """Return why the comparisons of a claim have no verdict, without the selectors that they begin with."""
    reasons = (re.sub("^'[^']*'(: | has )", "", _brief(finding.why)) for finding in result.findings)
    return "; ".join(dict.fromkeys(reasons))


def _data(table: Table) -> bytes:
    """Return a table as CSV, floats with six digits, in which no machine's rounding shows."""

    def short(value: Any) -> Any:
        return f"{value:.6g}" if isinstance(value, float) else value

    table = with_numbers(table)
    rows = [{name: short(value) for name, value in row.items()} for row in table.rows]
    return f"{csv(replace(table, rows=rows))}\n".encode()


def _brief(text: str) -> str:
    """Return why there is no verdict without the values that there are, which help to mend a selector."""
    return re.sub(r"(; did you mean [^?]*\?)? \(there is .*\)", "", text)


def _verdicts(table: Table, results: Sequence[ClaimResult], shown: Sequence[ClaimResult]) -> str:
    """Return those of the claims shown that were evaluated, ordered by their verdicts, with links to their sections."""
    rows = []
    chosen = [place for place, result in enumerate(results) if result.is_evaluated and result in shown]
    for place in sorted(chosen, key=lambda place: BEST_FIRST.index(results[place].verdict)):
        row = table.rows[place]
        changed = "".join(f", {change_text(change)}" for change in results[place].claim.changed)
        anchor = re.sub(r"[^\w-]", "", row["id"].lower().replace(" ", "-"))  # as Markdown makes that of a heading
        rows.append(row | {"id": f"[{row['id']}](#{anchor})", "verdict": row["verdict"] + changed})
    return markdown(Table(table.columns, rows).select([name for name in DOCUMENT_COLUMNS if name in table]))


def change_text(change: Mapping[str, str]) -> str:
    """Return when a row was changed after the runs, and its verdict before."""
    return f"row changed {change['date']}" + (f" (before: {change['before']})" if "before" in change else "")


def _described(change: Mapping[str, str]) -> str:
    """Return when and how a row was changed after the runs."""
    return f"{change_text(change)}: {change['what']}"


def claim_plot(result: ClaimResult) -> svg.Plot | None:
    """Draw what is behind a claim; None where there is nothing to draw, as for a count.

    The CSV has the values, to six digits: `variant`, `setting`, `x`, `y` of `transfer.report.claims.findings.Point`.
    """
    points = list(dict.fromkeys(chain.from_iterable(finding.points for finding in result.findings)))
    if not points:
        return None
    rows = [[variant, setting, f"{x:.6g}", "" if y is None else f"{y:.6g}"] for variant, setting, x, y in points]
    draw = {kinds.CORRELATION: [_scatter], kinds.HALF_SCORE: [_scatter]}.get(result.claim.kind, [_values, _effects])
    lines = 10 if _scatter in draw else max(len({point.variant for point in points}), len(result.findings))
    with svg.canvas(8.6, (ROW_INCHES * lines + 0.75) * len(draw), len(draw)) as (figure, all_axes):
        for draw_on, axes in zip(draw, all_axes, strict=True):
            draw_on(axes, result, points)
        return svg.finished_plot(figure, all_axes, csv_text([[*Point._fields], *rows]) + "\n")


def _scatter(axes: Any, result: ClaimResult, points: Sequence[Point]) -> None:
    for place, (variant, members) in enumerate(grouped_by(points, lambda point: point.variant).items()):
        x, y = [point.x for point in members], [point.y for point in members]
        axes.scatter(x, y, s=18, color=svg.OKABE_ITO[place % len(svg.OKABE_ITO)], label=svg.label_text(variant))
    claim = result.claim
    axes.set_xlabel(claim.over or claim.metric)
    axes.set_ylabel(claim.metric if claim.over else claim.against)
    if claim.kind == kinds.HALF_SCORE:
        rates = sorted({point.x for point in points})
        svg.logarithmic(axes.xaxis, rates)
        axes.set_xticks(rates)
        axes.set_xticks([], minor=True)


def _values(axes: Any, result: ClaimResult, points: Sequence[Point]) -> None:
    """Draw the values of each variant in a row."""
    variants = list(dict.fromkeys(point.variant for point in points))
    settings = list(dict.fromkeys(point.setting for point in points))
    for point in points:
        y = variants.index(point.variant) + (settings.index(point.setting) + 0.5) / len(settings) / 2 - 0.25
        axes.plot(point.x, y, "o", markersize=4.5, color=svg.OKABE_ITO[0])
    _name_rows(axes, variants, "failed runs in %" if result.claim.kind == kinds.FAILURES else result.claim.metric)


def _effects(axes: Any, result: ClaimResult, points: Sequence[Point]) -> None:
    """Draw each effect with its interval, the place of no effect, and the margin to both sides."""
    margin = result.claim.margin or 0.0
    drawn = [(finding, finding.effect) for finding in result.findings if finding.effect]
    for end, style in ((-margin, ":"), (margin, ":"), (0, "-")):
        axes.axvline(end, color=svg.INK, linewidth=1, linestyle=style)
    for row, (finding, effect) in enumerate(drawn):
        color = LOOKS.get(finding.verdict, svg.OKABE_ITO[7])
        axes.plot([effect.low, effect.high], [row, row], color=color, linewidth=2)
        axes.plot(effect.mean, row, "s", color=color, markersize=5)
    label = "interaction" if result.claim.kind == kinds.INTERACTION else "a less b"
    _name_rows(axes, [finding.name for finding, _ in drawn], label)


def _name_rows(axes: Any, names: Sequence[str], label: str) -> None:
    texts = [svg.wrapped(svg.label_text(name, 120), 3.6) for name in names]
    axes.set_yticks(range(len(names)), texts, fontsize=svg.SMALL_TEXT)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)
