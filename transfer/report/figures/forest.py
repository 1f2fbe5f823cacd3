"""Forest plot of a comparison: a row for each task, dataset and score, with its effect and interval.

Scores in percent share one panel, all others another one. Each row's label has its difference, its interval, and the
number of failed runs of each variant.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transfer.comparison.compare_arms import FAMILIES, ComparedScore, Comparison
from transfer.core.errors import visible
from transfer.core.files import csv_text
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import (
    COLORS,
    INK,
    SMALL,
    Mark,
    Plot,
    arm_number,
    canvas,
    for_both_widths,
    is_narrow,
    plain,
    plot_of,
    wrapped,
)
from transfer.report.summary.naming import compared_names
from transfer.report.summary.sentences import interval_text, row_name
from transfer.report.tables.comparison_text import verdict_in_short
from transfer.report.tables.table import plain_value
from transfer.statistics.verdicts import Kind

LINE = 0.17
"""Height of a line of a label in inches."""
ROWS = 60
"""Rows that are drawn; further ones are in the table alone."""
DECIDED = (Kind.A_BETTER, Kind.B_BETTER)
UNDECIDED = "#7f7f7f"


@for_both_widths
def forest_plot(comparison: Comparison, runs: RunSet, *, name: str = "forest") -> Plot | None:
    """Draw the differences of two variants in the primary scores with their 95 % intervals; None where no row has one.

    To the right of zero the first variant is better, also where lower is better. The CSV has every number in the
    table's sign and unit.

    Args:
        comparison: of two variants.
        runs: among which they were compared, for the colors of the variants.
        name: prefix of the ids in the SVG.
    """
    rows = [row for row in comparison.rows if row.effect is None and row.primary]
    drawn = [row for row in rows if row.estimate is not None or row.breakdowns][:ROWS]
    if not any(row.estimate is not None for row in drawn):
        return None
    panels = [
        part for part in ([row for row in drawn if row.percent], [row for row in drawn if not row.percent]) if part
    ]
    colors = dict(zip(DECIDED, _colors(comparison, runs), strict=True))
    a, b = (plain(name, 40) for name in compared_names(comparison, runs))
    labels = {id(row): _label(row, {"a": a, "b": b}) for row in drawn}
    lines = [max(1 + labels[id(row)].count("\n") for row in part) + 1 for part in panels]
    height = LINE * sum(of * len(part) for of, part in zip(lines, panels, strict=True)) + 0.7 * len(panels) + 0.5
    with canvas(8.6, height, len(panels)) as (figure, all_axes):
        marks: list[Mark] = []
        for axes, part in zip(all_axes, panels, strict=True):
            marks += _panel(axes, part, colors)
            axes.set_yticks(range(len(part)), [labels[id(row)] for row in part], fontsize=SMALL)
            axes.set_xlabel("percentage points" if part[0].percent else "the metric's own unit")
        sides = (f"← {b} better", f"→ {a} better")
        lines_of = "\n".join(wrapped(side, figure.get_figwidth(), 9) for side in sides)
        figure.suptitle(lines_of, x=0.01, ha="left", fontsize=9)
        figure.set_figheight(max(figure.get_figheight(), height + LINE * (lines_of.count("\n") - 1)))
        return plot_of(figure, name, _csv(rows), marks)


def _colors(comparison: Comparison, runs: RunSet) -> list[str]:
    """Return the color of each variant: that of its name in the other figures, if it has one there."""
    single = [arm_number(name, -1) for name in compared_names(comparison, runs)]
    numbers = single if -1 not in single else [0, 1]
    return [COLORS[number % len(COLORS)] for number in numbers]


def _panel(axes: Any, rows: Sequence[ComparedScore], colors: Mapping[Kind, str]) -> Iterator[Mark]:
    """Draw the rows of a panel; yield what is said of each."""
    places = range(len(rows))
    axes.axvline(0, color=INK, linewidth=0.9)
    for place, row in zip(places, rows, strict=True):
        estimate, sign = row.estimate, 1 if row.higher else -1
        if estimate is None:
            continue
        ends = sorted(sign * row.scale * value for value in (estimate.low, estimate.high))
        color = colors.get(row.verdict.kind, UNDECIDED)
        axes.plot(ends, [place, place], color=color, linewidth=2.2, solid_capstyle="butt")
        filled = color if row.verdict.kind in DECIDED else "white"
        gid = f"effect-{row.percent:d}-{place}"
        at, look = [sign * row.scale * estimate.estimate], {"s": 44, "marker": "s", "zorder": 3, "gid": gid}
        axes.scatter(at, [place], color=filled, edgecolors=color, **look)
        seeds = " and ".join(map(str, dict.fromkeys(estimate.seeds)))
        told = f"{row_name(row)}: {interval_text(row)}, p {row.p:.2g}, seeds {seeds}, {verdict_in_short(row.verdict)}"
        yield Mark(gid, told, row.matched.first.run_id)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(True, axis="x", color=INK, alpha=0.14, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _label(row: ComparedScore, names: Mapping[str, str]) -> str:
    """Return the lines of a row's label: its name, not shortened, its setting, its difference, and its failed runs."""
    uncounted = ", not counted" * (row.family == FAMILIES[2])
    lines = (visible(row_name(row)) + uncounted).replace(" (", "\n(", 1).split("\n")
    lines += [interval_text(row).replace(" points", "")] if row.estimate is not None else []
    for variant in row.breakdowns:
        if variant.broken:
            name = names.get(variant.variant, variant.variant)
            lines.append(f"✗ {name} failed in {variant.broken} of {variant.of}")
    return "\n".join(wrapped(line, 1.5 if is_narrow() else 3.5) for line in lines)


def _csv(rows: Sequence[ComparedScore]) -> str:
    settings = list(dict.fromkeys(name for row in rows for name in row.matched.setting))
    numbers_of = ("difference", "low", "high", "p", "verdict")
    lines: list[list[Any]] = [["task", "dataset", *settings, "score", "percent", *numbers_of]]
    for row in rows:
        first, estimate = row.matched.first, row.estimate
        numbers: list[Any] = ["", "", "", ""]
        if estimate is not None:
            numbers = [row.scale * estimate.estimate, row.scale * estimate.low, row.scale * estimate.high, row.p]
        setting = [plain_value(name, row.matched.setting.get(name, "")) for name in settings]
        head = [first.task, first.dataset.get("name"), *setting, row.score, row.percent]
        lines.append([*head, *numbers, verdict_in_short(row.verdict)])
    return f"{csv_text(lines)}\n"
