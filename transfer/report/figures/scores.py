"""Scores in figures: differences of two variants as a forest plot, and scores against their costs.

In the forest plot scores in percent share one panel, all others another one. Each row's label has its difference, its
interval, and the number of failed runs of each variant. Costs have a panel for each dataset and metric, with its Pareto
front.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transfer.comparison.compare_arms import FAMILIES, ComparedScore, Comparison
from transfer.core.errors import visible
from transfer.records.run_set import RunSet
from transfer.report.figures import svg
from transfer.report.summary.sentences import interval_text, row_name
from transfer.report.summary.variants import compared_names
from transfer.report.tables.comparison import comparison_table, verdict_in_short
from transfer.report.tables.table import Row, Table, cell_text, is_missing
from transfer.report.tables.text import csv
from transfer.statistics.verdicts import Kind

LINE = 0.17
"""Height of a line of a label in inches."""
DECIDED = (Kind.A_BETTER, Kind.B_BETTER)
UNDECIDED = "#7f7f7f"


def forest_plot(comparison: Comparison, runs: RunSet, names: Mapping[str, str]) -> svg.Plot | None:
    """Draw the differences of two variants in the primary scores with their 95 % intervals; None where no row has one.

    To the right of zero the first variant is better, also where lower is better. The CSV has every number in the
    table's sign and unit.

    Args:
        comparison: of two variants.
        runs: among which they were compared.
        names: the variant of each run of the report, by its id, for the colors.
    """
    rows = [row for row in comparison.rows if row.effect is None and row.primary]
    drawn = [row for row in rows if row.estimate is not None or row.breakdowns]
    if not any(row.estimate is not None for row in drawn):
        return None
    panels = list(filter(None, ([row for row in drawn if row.percent == percent] for percent in (True, False))))
    variants = compared_names(comparison, runs)
    known = names if {*variants} <= {*names.values()} else dict(zip("ab", variants, strict=True))
    colors = dict(zip(DECIDED, (svg.color_of(name, known) for name in variants), strict=True))
    a, b = (svg.plain(name, 40) for name in variants)
    labels = {id(row): _label(row, {"a": a, "b": b}) for row in drawn}
    lines = [max(1 + labels[id(row)].count("\n") for row in part) + 1 for part in panels]
    height = LINE * sum(of * len(part) for of, part in zip(lines, panels, strict=True)) + 0.7 * len(panels) + 0.5
    with svg.canvas(8.6, height, len(panels)) as (figure, all_axes):
        for axes, part in zip(all_axes, panels, strict=True):
            _draw_rows(axes, part, colors)
            axes.set_yticks(range(len(part)), [labels[id(row)] for row in part], fontsize=svg.SMALL)
            axes.set_xlabel("percentage points" if part[0].percent else "the metric's own unit")
        sides = (f"← {b} better", f"→ {a} better")
        lines_of = "\n".join(svg.wrapped(side, figure.get_figwidth(), 9) for side in sides)
        figure.suptitle(lines_of, x=0.01, ha="left", fontsize=9)
        figure.set_figheight(max(figure.get_figheight(), height + LINE * (lines_of.count("\n") - 1)))
        table = comparison_table(comparison, runs)
        cells = [cells for cells, row in zip(table.rows, comparison.rows, strict=True) if row in drawn]
        return svg.plot_of(figure, csv(replace(table, rows=cells, notes=[])))


def _draw_rows(axes: Any, rows: Sequence[ComparedScore], colors: Mapping[Kind, str]) -> None:
    """Draw the rows of a panel."""
    axes.axvline(0, color=svg.INK, linewidth=0.9)
    for place, row in enumerate(rows):
        estimate, sign = row.estimate, 1 if row.higher else -1
        if estimate is None:
            continue
        ends = sorted(sign * row.scale * value for value in (estimate.low, estimate.high))
        color = colors.get(row.verdict.kind, UNDECIDED)
        axes.plot(ends, [place, place], color=color, linewidth=2.2, solid_capstyle="butt")
        filled = color if row.verdict.kind in DECIDED else "white"
        seeds = " and ".join(map(str, dict.fromkeys(estimate.seeds)))
        told = f"{row_name(row)}: {interval_text(row)}, p {row.p:.2g}, seeds {seeds}, {verdict_in_short(row.verdict)}"
        look = {"s": 44, "marker": "s", "zorder": 3, "gid": svg.mark(told, row.matched.first.run_id)}
        axes.scatter([sign * row.scale * estimate.estimate], [place], color=filled, edgecolors=color, **look)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(True, axis="x", color=svg.INK, alpha=0.14, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _label(row: ComparedScore, names: Mapping[str, str]) -> str:
    """Return the lines of a row's label: its name, not shortened, its setting, its difference, and its failed runs."""
    uncounted = ", not counted" * (row.family == FAMILIES[2])
    lines = (visible(row_name(row)) + uncounted).replace(" (", "\n(", 1).split("\n")
    lines += [interval_text(row).replace(" points", "")] if row.estimate is not None else []
    lines += [f"✗ {names[one.variant]} failed in {one.broken} of {one.of}" for one in row.breakdowns if one.broken]
    return "\n".join(svg.wrapped(line, 1.5 if svg.is_narrow() else 3.5) for line in lines)


COST = "gflops"
"""Column on the horizontal axis."""
PANEL = ("task", "dataset", "metric")
SHAPES = "osD^vPX*"
SPREAD = 1.05
"""Least ratio of the largest to the smallest cost of a panel: nearer costs are as good as equal."""


def cost_plot(rows: Table, names: Mapping[str, str]) -> svg.Plot | None:
    """Draw a cost table: score against operations on a logarithmic axis, with the Pareto front ringed and joined.

    None where the costs on no dataset differ by `SPREAD`. Points are hollow, so that none hides another. The
    CSV has the rows with a positive cost and a score.

    Args:
        rows: the table.
        names: the variant of each run of the report, by its id.
    """
    points = [row for row in rows.rows if not is_missing(row[COST]) and row[COST] > 0 and not is_missing(row["score"])]
    kept = replace(rows, rows=sorted(points, key=lambda row: (row[COST], row["score"])), notes=[])
    panels: dict[tuple[Any, ...], list[Row]] = {}
    for row in kept.rows:
        panels.setdefault(tuple(row[name] for name in PANEL), []).append(row)
    panels = {key: of for key, of in panels.items() if of[-1][COST] >= SPREAD * of[0][COST]}  # sorted by cost
    if not panels:
        return None
    across = min(len(panels), 2)
    with svg.canvas(4.6 * across + 0.4, 3.4 * -(-len(panels) // across), len(panels), across) as (figure, all_axes):
        for axes, (key, of_panel) in zip(all_axes, panels.items()):
            _draw_points(axes, of_panel, names)
            axes.set_title(svg.wrapped(svg.plain(f"{key[0]} {key[2]} on {key[1]}"), 2.6, 10))
            axes.set_xlabel("GFLOP per image (forward pass)")
            axes.set_ylabel(svg.plain(key[2], 24))
            svg.logarithmic(axes.xaxis, [row[COST] for row in of_panel])
        svg.finish(figure, all_axes)
        return svg.plot_of(figure, csv(kept))


def _draw_points(axes: Any, points: Sequence[Row], names: Mapping[str, str]) -> None:
    """Draw the points of a panel, with the names of the variants of all runs."""
    for row in points:
        name = names[row["run"][0]]
        number, color = svg.number_of(name, names), svg.color_of(name, names)
        shape = SHAPES[(number + number // len(svg.COLORS)) % len(SHAPES)]
        spread = 0.0 if is_missing(row["score_sd"]) else row["score_sd"]
        score = f"{row['score']:.2f}" + f" ± {spread:.2f}" * bool(spread)
        told = f"{name}: {row['metric']} {score}, {row['seeds']} seeds, {COST} {row[COST]:.4g}; {row['run'][0]}"
        axes.errorbar(row[COST], row["score"], yerr=spread, fmt="none", ecolor=color, alpha=0.6)
        look = {"s": 42, "facecolors": "none", "edgecolors": color, "marker": shape, "linewidths": 1.8}
        look |= {"label": svg.plain(name, 120), "zorder": 3, "gid": svg.mark(told, row["run"][0], name)}
        axes.scatter([row[COST]], [row["score"]], **look)
    best = [row for row in points if row[f"pareto_{COST}"]]
    for protocol in dict.fromkeys(cell_text(row["protocol"]) for row in best):
        front = [(row[COST], row["score"]) for row in best if cell_text(row["protocol"]) == protocol]
        axes.plot(*zip(*front), color=svg.INK, linewidth=1.1, drawstyle="steps-post")
    if best:
        ringed = {"facecolors": "none", "edgecolors": svg.INK, "zorder": 4, "label": "Pareto front"}
        axes.scatter([row[COST] for row in best], [row["score"] for row in best], s=110, **ringed)
