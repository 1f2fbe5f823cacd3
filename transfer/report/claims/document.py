"""What is written of claims: the table with their verdicts, the sections of its page, figures, the document of a study.

The document is in Markdown (`study.md` is its template), from the file of claims and the records. The same records and
claims give the same text and the same data of figures, on any machine.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transfer.core.errors import visible_lines
from transfer.core.files import check_writable, csv_text, rendered, write_atomic
from transfer.experiments import claims as kinds
from transfer.experiments.claims import Claims
from transfer.records.run_set import RunSet
from transfer.report.claims.findings import BEST_FIRST, Finding, Point, Result, hours_of, verdict_counts
from transfer.report.figures import svg
from transfer.report.page.html import Section
from transfer.report.tables.table import RUN, SIGNIFICANT, Column, Note, Table, with_numbers
from transfer.report.tables.text import csv, markdown, without_tags
from transfer.statistics.verdicts import CONTRADICTION, NO_EFFECT, SUPPORT

OWN = "The suite's own rows"
RULE = "verdicts are by the rule of each row, and are not corrected for the number of rows"
DETAIL = {"claim": -1, "verdict": -1, "unit": 1}
DETAIL |= dict.fromkeys(("comparison", "margin", "detectable", "comparisons"), 2)
DETAIL |= dict.fromkeys(("registered", "predicted hours", "kind", "expect", "where", "own", "reason"), 3)
"""How soon a narrow terminal does without a column."""
SHOWN = ("id", "claim", "effect", "unit", "verdict", "n", "hours")
"""Columns of the table of claims in the document; the file of its data has all."""
LINE = 0.27
"""Height of a row in inches."""
LOOKS = {SUPPORT: svg.COLORS[2], CONTRADICTION: svg.COLORS[1]}
"""Color of an effect by its verdict; of any other it is gray."""


def claim_table(results: Sequence[Result], runs: RunSet) -> Table:
    """Return a row for each claim: effect with its 95 % interval, verdict, n, and hours.

    Columns:
        `effect`: with its interval, of the comparison that supports the claim least, a less b, in `unit`;
        `verdict`: support, contradiction, undecided, or what stands in its place;
        `hours`: of the runs and of the trainings that their weights come from, of GPUs, or of cores on CPUs;
        `detectable`: difference that such runs show four times in five; `registered`: as the row predicted it;
        `predicted hours`: as the row predicted them.
    """
    rows: list[dict[str, Any]] = []
    for result in results:
        claim, shown, of = result.claim, result.shown, len(result.findings)
        rows.append(
            {
                "id": claim.id,
                "claim": claim.claim,
                "effect": shown.effect,
                "verdict": result.verdict_text,
                "n": shown.n or None,
                "hours": hours_of(result.records, runs),
                "comparison": shown.name,
                "comparisons": of if of > 1 else None,
                "unit": shown.unit or None,
                "margin": claim.margin,
                "detectable": shown.detectable,
                "registered": claim.detectable,
                "predicted hours": claim.hours,
                **{name: getattr(claim, name) or None for name in ("kind", "expect", "where")},
                "own": claim.own or None,
                "reason": "; ".join(one.why for one in result.findings if one.why) or None,
                "changed": "; ".join(f"{change_text(one)}: {one['what']}" for one in claim.changed) or None,
                RUN: tuple(sorted(result.records)),
            }
        )
    notes = [Note(text, one.claim.id, (place,)) for place, one in enumerate(results) for text in one.remarks]
    for place, one in enumerate(results):
        if one.claim.commands and one.verdict not in (SUPPORT, NO_EFFECT, CONTRADICTION):
            commands = ", then ".join(f"`{command}`" for command in one.claim.commands)
            notes.append(Note(f"to settle it: {commands}", one.claim.id, (place,)))
    for place, claim in enumerate(one.claim for one in results):
        notes += [Note(f"{change_text(one)}: {one['what']}", claim.id, (place,)) for one in claim.changed]
    return _table(rows, [Note(RULE), *notes])


def _table(rows: Sequence[dict[str, Any]], notes: Sequence[Note] = ()) -> Table:
    digits = {name: 2 if "hours" in name else SIGNIFICANT for name in rows[0]}
    columns = [Column(name, significant_digits=of, detail=DETAIL.get(name, 0)) for name, of in digits.items()]
    return Table.from_rows(rows, columns, notes).without_empty()


def claim_sections(title: str, results: Sequence[Result], runs: RunSet, *, plots: bool = False) -> Iterator[Section]:
    """Yield the tables of claims and of own rows, then each one's comparisons if several, and with `plots` figures."""
    parts = {title: [one for one in results if not one.claim.own], OWN: [one for one in results if one.claim.own]}
    for name, of in parts.items():
        if of:
            yield Section(title=name, table=claim_table(of, runs), note=f"Claims: {verdict_counts(of)}.")
    for result in results:
        rows = comparison_table(result.findings) if len(result.findings) > 1 else None
        plot = claim_plot(result) if plots else None
        if rows or plot:
            yield Section(title=f"{result.claim.id}: {result.claim.claim}", table=rows, plot=plot)


def comparison_table(findings: Sequence[Finding]) -> Table:
    """Return a row for each comparison of a claim."""
    rows = []
    for one in findings:
        mean_a, mean_b = one.means if len(one.means) == 2 else (None, None)
        rows.append(
            {"a": one.a, "b": one.b or None, "mean a": mean_a, "mean b": mean_b, "effect": one.effect}
            | {"unit": one.unit or None, "verdict": one.verdict, "n": one.n or None, "detectable": one.detectable}
            | {RUN: tuple(record.run_id for record in one.records)}
        )
    return _table(rows)


def write_document(file: Path, read: Claims, results: Sequence[Result], runs: RunSet) -> list[Path]:
    """Write the document, and beside it a folder of its name with the table and the figures' data as CSV, and figures.

    Returns:
        The files.
    """
    folder, figures = file.with_suffix(""), dict[str, str]()
    table = claim_table(results, runs)
    compared = [
        {"id": one.claim.id, **row} for one in results if one.findings for row in comparison_table(one.findings).rows
    ]
    contents = {folder / "claims.csv": _data(table), folder / "comparisons.csv": _data(Table.from_rows(compared))}
    for result in results:
        if plot := claim_plot(result):
            name = Section(title=result.claim.id).file_name
            contents |= {folder / f"{name}.svg": svg.on_white(plot), folder / f"{name}.csv": plot.csv.encode()}
            figures[result.claim.id] = f"{folder.name}/{name}.svg"
    text = rendered(
        Path(__file__).with_name("study.md"),
        lambda text: without_tags(visible_lines(text)),
        read=read,
        results=results,
        evaluated=[one for one in results if one.is_evaluated],
        figures=figures,
        records={name: record for one in results for name, record in one.records.items()},
        hours=lambda records: hours_of(records, runs),
        counts=verdict_counts,
        papers=[one for one in results if not one.claim.own],
        own=[one for one in results if one.claim.own],
        table=lambda of: _verdicts(table, results, of),
        comparisons=lambda one: markdown(comparison_table([of for of in one.findings if of.effect]).without(RUN)),
        brief=_brief,
        missing=lambda one: "; ".join(
            dict.fromkeys(re.sub("^'[^']*'(: | has )", "", _brief(of.why)) for of in one.findings)
        ),
    )
    contents[file] = (re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n").encode()
    check_writable(folder, "--document")
    for path, content in contents.items():
        write_atomic(path, content, flag="--document")
    return [*contents]


def _data(table: Table) -> bytes:
    """Return a table as CSV, floats with six digits, in which no machine's rounding shows."""
    table = with_numbers(table)
    rows = [{name: f"{of:.6g}" if isinstance(of, float) else of for name, of in row.items()} for row in table.rows]
    return f"{csv(replace(table, rows=rows))}\n".encode()


def _brief(text: str) -> str:
    """Return why there is no verdict without the values that there are, which help to mend a selector."""
    return re.sub(r"(; did you mean [^?]*\?)? \(there is .*\)", "", text)


def _verdicts(table: Table, results: Sequence[Result], shown: Sequence[Result]) -> str:
    """Return those of the claims shown that were evaluated, ordered by their verdicts, with links to their sections."""
    places = sorted(range(len(results)), key=lambda place: BEST_FIRST.index(results[place].verdict))
    places = [place for place in places if results[place].is_evaluated and results[place] in shown]
    rows = []
    for place, row in zip(places, table.take(places).rows, strict=True):
        changed = "".join(f", {change_text(one)}" for one in results[place].claim.changed)
        anchor = re.sub(r"[^\w-]", "", row["id"].lower().replace(" ", "-"))  # as Markdown makes that of a heading
        rows.append(row | {"id": f"[{row['id']}](#{anchor})", "verdict": row["verdict"] + changed})
    return markdown(Table(table.columns, rows).select([name for name in SHOWN if name in table]))


def change_text(change: Mapping[str, str]) -> str:
    """Return when a row was changed after the runs, and its verdict before."""
    return f"row changed {change['date']}" + (f" (before: {change['before']})" if "before" in change else "")


def claim_plot(result: Result) -> svg.Plot | None:
    """Draw what is behind a claim; None where there is nothing to draw, as for a count.

    The CSV has the values, to six digits: `variant`, `setting`, `x`, `y` of `transfer.report.claims.findings.Point`.
    """
    points = list(dict.fromkeys(point for one in result.findings for point in one.points))
    if not points:
        return None
    rows = [[one.variant, one.setting, f"{one.x:.6g}", "" if one.y is None else f"{one.y:.6g}"] for one in points]
    draw = {kinds.CORRELATION: [_scatter], kinds.HALF_SCORE: [_scatter]}.get(result.claim.kind, [_values, _effects])
    lines = 10 if _scatter in draw else max(len({one.variant for one in points}), len(result.findings))
    with svg.canvas(8.6, (LINE * lines + 0.75) * len(draw), len(draw)) as (figure, all_axes):
        for draw_on, axes in zip(draw, all_axes, strict=True):
            draw_on(axes, result, points)
        svg.finish(figure, all_axes)
        return svg.plot_of(figure, csv_text([[*Point._fields], *rows]) + "\n")


def _scatter(axes: Any, result: Result, points: Sequence[Point]) -> None:
    for place, variant in enumerate(dict.fromkeys(one.variant for one in points)):
        x, y = zip(*((one.x, one.y) for one in points if one.variant == variant), strict=True)
        axes.scatter(x, y, s=18, color=svg.COLORS[place % len(svg.COLORS)], label=svg.plain(variant))
    claim = result.claim
    axes.set_xlabel(claim.over or claim.metric)
    axes.set_ylabel(claim.metric if claim.over else claim.against)
    if claim.kind == kinds.HALF_SCORE:
        rates = sorted({one.x for one in points})
        svg.logarithmic(axes.xaxis, rates)
        axes.set_xticks(rates)
        axes.set_xticks([], minor=True)


def _values(axes: Any, result: Result, points: Sequence[Point]) -> None:
    """Draw the values of each variant in a row."""
    variants = list(dict.fromkeys(one.variant for one in points))
    settings = list(dict.fromkeys(one.setting for one in points))
    for one in points:
        y = variants.index(one.variant) + (settings.index(one.setting) + 0.5) / len(settings) / 2 - 0.25
        axes.plot(one.x, y, "o", markersize=4.5, color=svg.COLORS[0])
    _name_rows(axes, variants, "failed runs in %" if result.claim.kind == kinds.FAILURES else result.claim.metric)


def _effects(axes: Any, result: Result, points: Sequence[Point]) -> None:
    """Draw each effect with its interval, the place of no effect, and the margin to both sides."""
    margin, drawn = result.claim.margin or 0.0, [(one, one.effect) for one in result.findings if one.effect]
    for end, style in ((-margin, ":"), (margin, ":"), (0, "-")):
        axes.axvline(end, color=svg.INK, linewidth=1, linestyle=style)
    for row, (one, effect) in enumerate(drawn):
        color = LOOKS.get(one.verdict, svg.COLORS[7])
        axes.plot([effect.low, effect.high], [row, row], color=color, linewidth=2)
        axes.plot(effect.mean, row, "s", color=color, markersize=5)
    label = "interaction" if result.claim.kind == kinds.INTERACTION else "a less b"
    _name_rows(axes, [one.name for one, _ in drawn], label)


def _name_rows(axes: Any, names: Sequence[str], label: str) -> None:
    texts = [svg.wrapped(svg.plain(name, 120), 3.6) for name in names]
    axes.set_yticks(range(len(names)), texts, fontsize=svg.SMALL)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)
