"""Forest plot of a comparison: a row for each task, data set and score, with its effect and interval.

Scores in percent stand in one panel, those in another unit in a panel each. Marks in the margin say which arms had
trainings that broke down.
"""

import io
from collections.abc import Sequence
from csv import writer
from typing import Any

from transfer.comparison.compare_arms import ComparedScore, Comparison
from transfer.report.answer.naming import arm_name
from transfer.report.answer.sentences import interval_text, row_name
from transfer.report.figures.svg import COLOURS, INK, Plot, canvas, plain, plot_of
from transfer.report.tables.verdict_text import verdict_in_short
from transfer.statistics.verdicts import Kind

ROW = 0.34
"""Height of a row in inches."""
ROWS = 60
"""Rows that are drawn; further ones stand in the table alone."""
DECIDED = {Kind.A_BETTER: COLOURS[0], Kind.B_BETTER: COLOURS[1]}
UNDECIDED = "#7f7f7f"


def forest_plot(comparison: Comparison, *, primary: bool = True, name: str = "forest") -> Plot | None:
    """Draw the differences of two arms with their 95 % intervals; None where no row has one.

    To the right of zero the first arm is better, also in scores of which less is better. The CSV has every number in
    the table's sign and unit.

    Args:
        comparison: of two arms.
        primary: show the tasks' primary scores alone.
        name: prefix of the ids in the SVG.
    """
    rows = [row for row in comparison.rows if row.effect is None and (row.primary or not primary)]
    drawn = [row for row in rows if row.estimate is not None or row.breakdowns][:ROWS]
    if not any(row.estimate is not None for row in drawn):
        return None
    panels = [
        part for part in ([row for row in drawn if row.percent], [row for row in drawn if not row.percent]) if part
    ]
    a, b = (plain(arm_name(arm.text), 40) for arm in comparison.arms)
    height = sum(ROW * len(part) for part in panels) + 1.15 * len(panels)
    with canvas(8.6, height, len(panels)) as (figure, all_axes):
        for axes, part in zip(all_axes, panels, strict=True):
            _panel(axes, part)
            axes.set_xlabel("points of a percent" if part[0].percent else "the score's own unit")
            axes.set_title(f"← {b} better", loc="left", fontsize=9)
            axes.set_title(f"{a} better →", loc="right", fontsize=9)
        return plot_of(figure, name, _csv(rows))


def _panel(axes: Any, rows: Sequence[ComparedScore]) -> None:
    places = range(len(rows))
    axes.axvline(0, color=INK, linewidth=0.9)
    for place, row in zip(places, rows, strict=True):
        estimate, sign = row.estimate, 1 if row.higher else -1
        broken = ", ".join(f"{arm.arm} broke down {arm.broken}/{arm.of}" for arm in row.breakdowns if arm.broken)
        beside = "" if estimate is None else interval_text(row)
        axes.annotate(
            "  ".join(filter(None, [beside, f"✗ {broken}" if broken else ""])),
            (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=INK,
        )  # fmt: skip
        if estimate is None:
            continue
        ends = sorted(sign * row.scale * value for value in (estimate.low, estimate.high))
        colour = DECIDED.get(row.verdict.kind, UNDECIDED)
        axes.plot(ends, [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
        filled = colour if row.verdict.kind in DECIDED else "white"
        axes.scatter(
            [sign * row.scale * estimate.estimate], [place], s=44, marker="s", color=filled, edgecolors=colour, zorder=3
        )
    axes.set_yticks(list(places), [plain(row_name(row), 48) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(True, axis="x", color=INK, alpha=0.14, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _csv(rows: Sequence[ComparedScore]) -> str:
    content = io.StringIO()
    table = writer(content, lineterminator="\n")
    table.writerow(["task", "dataset", "score", "percent", "difference", "low", "high", "p", "verdict"])
    for row in rows:
        first, estimate = row.matched.first, row.estimate
        numbers: list[Any] = ["", "", "", ""]
        if estimate is not None:
            numbers = [row.scale * estimate.estimate, row.scale * estimate.low, row.scale * estimate.high, row.p]
        head = [first.task, first.dataset.get("name"), row.score, row.percent]
        table.writerow([*head, *numbers, verdict_in_short(row.verdict)])
    return content.getvalue()
