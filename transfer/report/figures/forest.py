"""Forest plot of a comparison: a row for each task, dataset and score, with its effect and interval.

Scores in percent stand in one panel, those in another unit in a panel each. Marks in the margin say which variants had
trainings that broke down.
"""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from backbones.errors import visible
from backbones.runtime.csv_text import csv_text
from transfer.comparison.compare_arms import ComparedScore, Comparison
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import COLOURS, INK, Mark, Plot, arm_number, canvas, is_narrow, plain, plot_of
from transfer.report.summary.naming import arm_name
from transfer.report.summary.sentences import interval_text, row_name
from transfer.report.tables.table import plain_value
from transfer.report.tables.verdict_text import verdict_in_short
from transfer.statistics.verdicts import Kind

ROW, LINE = 0.34, 0.26
"""Height of a row, and of a line of its label, in inches."""
ROWS = 60
"""Rows that are drawn; further ones stand in the table alone."""
DECIDED = (Kind.A_BETTER, Kind.B_BETTER)
UNDECIDED = "#7f7f7f"


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
    a, b = (plain(arm_name(variant.text), 40) for variant in comparison.variants)
    labels = {id(row): _label(row) for row in drawn}
    around = 1.7 if is_narrow() else 1.15  # titles one above the other
    height = sum(max(ROW, LINE * (1 + label.count("\n"))) for label in labels.values()) + around * len(panels)
    with canvas(8.6, height, len(panels)) as (figure, all_axes):
        marks: list[Mark] = []
        for axes, part in zip(all_axes, panels, strict=True):
            marks += _panel(axes, part, colors, {"a": a, "b": b})
            axes.set_yticks(range(len(part)), [labels[id(row)] for row in part])
            axes.set_xlabel("points of a percent" if part[0].percent else "the score's own unit")
            axes.set_title(f"← {b} better{chr(10) * is_narrow()}", loc="left", fontsize=9)  # a line above the other
            axes.set_title(f"{a} better →", loc="right", fontsize=9)
        return plot_of(figure, name, _csv(rows), marks)


def _colors(comparison: Comparison, runs: RunSet) -> list[str]:
    """Return the color of each variant: that of its backbone in the other figures, if its runs have one only."""
    named = [
        {runs.backbone_names.get(run.record.run_id, "") for run in variant.runs} for variant in comparison.variants
    ]
    single = [arm_number(min(names), -1) if len(names) == 1 else -1 for names in named]
    numbers = single if -1 not in single and single[0] != single[1] else [0, 1]
    return [COLOURS[number % len(COLOURS)] for number in numbers]


def _panel(
    axes: Any, rows: Sequence[ComparedScore], colors: Mapping[Kind, str], names: Mapping[str, str]
) -> Iterator[Mark]:
    """Draw the rows of a panel; yield what is said of each."""
    places = range(len(rows))
    axes.axvline(0, color=INK, linewidth=0.9)
    for place, row in zip(places, rows, strict=True):
        estimate, sign = row.estimate, 1 if row.higher else -1
        broken = ", ".join(
            f"{names.get(variant.variant, variant.variant)} broke down {variant.broken}/{variant.of}"
            for variant in row.breakdowns
            if variant.broken
        )
        beside = "" if estimate is None else interval_text(row)
        axes.annotate(
            "  ".join(filter(None, [beside, f"✗ {broken}" if broken else ""])),
            (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=INK,
        )  # fmt: skip
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


def _label(row: ComparedScore) -> str:
    """Return the name of a row in lines, whole, as its end is what tells rows apart; its setting begins a line."""
    width = 18 if is_narrow() else 48
    parts = visible(row_name(row)).replace(" (", "\n(", 1).split("\n")
    return "\n".join(line for part in parts for line in wrap(part, width))


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
