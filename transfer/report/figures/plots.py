"""The figures of a report: differences of two variants, scores against costs, and how trainings go.

In the forest plot of differences scores in percent share one panel, all others another one. Each row's label has its
difference, its interval, and the number of failed runs of each variant. Costs have a panel for each dataset and metric,
with its Pareto front. A stability map has a panel for each map, a cell for each rate and warm-up, and hatched failures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from transfer.comparison.compare_arms import ComparedScore, Comparison, Family
from transfer.core.errors import visible
from transfer.core.grouped import grouped_by, values_by_key
from transfer.engine.checkpoint import history
from transfer.records.fields import order, value_label
from transfer.records.run_set import StoredRuns
from transfer.report.figures import svg
from transfer.report.summary.sentences import compared_names, interval_text, row_name
from transfer.report.tables.comparison import comparison_table
from transfer.report.tables.stability_map import StabilityMap
from transfer.report.tables.table import RUN, Row, Table, cell_text, is_missing
from transfer.report.tables.text import csv
from transfer.statistics.verdicts import Kind

LINE_INCHES = 0.17
"""Height of a line of a label in inches."""
DECIDED = (Kind.A_BETTER, Kind.B_BETTER)
UNDECIDED = "#7f7f7f"


def forest_plot(comparison: Comparison, runs: StoredRuns, names: Mapping[str, str]) -> svg.Plot | None:
    """Draw the differences of two variants in the primary scores with their 95 % intervals; None where no row has one.

    To the right of zero the first variant is better, also where lower is better. The CSV has every number in the
    table's sign and unit.

    Args:
        comparison: of two variants.
        runs: among which they were compared.
        names: the variant of each run of the report, by its id, for the colors.
    """
    drawn = [row for row in comparison.rows if row.primary]
    if not any(row.estimate is not None for row in drawn):
        return None
    in_percent, in_units = ([row for row in drawn if row.percent == percent] for percent in (True, False))
    panels = [panel for panel in (in_percent, in_units) if panel]
    variants = compared_names(comparison, runs)
    known = names if {*variants} <= {*names.values()} else dict(zip("ab", variants, strict=True))
    colors = dict(zip(DECIDED, (svg.color_of(name, known) for name in variants), strict=True))
    a, b = (svg.label_text(name, 40) for name in variants)
    labels = {id(row): _label(row, {"a": a, "b": b}) for row in drawn}
    lines = [max(1 + labels[id(row)].count("\n") for row in part) + 1 for part in panels]
    rows_high = sum(count * len(part) for count, part in zip(lines, panels, strict=True))
    height = LINE_INCHES * rows_high + 0.7 * len(panels) + 0.5
    with svg.canvas(8.6, height, len(panels)) as (figure, all_axes):
        for axes, part in zip(all_axes, panels, strict=True):
            _draw_rows(axes, part, colors)
            axes.set_yticks(range(len(part)), [labels[id(row)] for row in part], fontsize=svg.SMALL_TEXT)
            axes.set_xlabel("percentage points" if part[0].percent else "the metric's own unit")
        sides = (f"← {b} better", f"→ {a} better")
        lines_of = "\n".join(svg.wrapped(side, figure.get_figwidth(), 9) for side in sides)
        figure.suptitle(lines_of, x=0.01, ha="left", fontsize=9)
        figure.set_figheight(max(figure.get_figheight(), height + LINE_INCHES * (lines_of.count("\n") - 1)))
        table = comparison_table(comparison, runs)
        cells = [cells for cells, row in zip(table.rows, comparison.rows, strict=True) if row.primary]
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
        about = f"{row_name(row)}: {interval_text(row)}, p {row.p:.2g}, seeds {seeds}, {cell_text(row.verdict)}"
        look = {"s": 44, "marker": "s", "zorder": 3, "gid": svg.mark(about, row.matched.first.run_id)}
        axes.scatter([sign * row.scale * estimate.estimate], [place], color=filled, edgecolors=color, **look)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(True, axis="x", color=svg.INK, alpha=0.14, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _label(row: ComparedScore, names: Mapping[str, str]) -> str:
    """Return the lines of a row's label: its name, not shortened, its setting, its difference, and its failed runs."""
    uncounted = ", not counted" if row.family is Family.NOT_COUNTED else ""
    lines = (visible(row_name(row)) + uncounted).replace(" (", "\n(", 1).split("\n")
    lines += [interval_text(row).replace(" points", "")] if row.estimate is not None else []
    for variant in row.breakdowns:
        if variant.broken:
            lines.append(f"✗ {names[variant.variant]} failed in {variant.broken} of {variant.judged}")
    return "\n".join(svg.wrapped(line, 1.5 if svg.is_narrow() else 3.5) for line in lines)


COST = "gflops"
"""Column on the horizontal axis."""
COST_PANEL = ("task", "dataset", "metric")
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
    points = [row for row in rows.rows if not is_missing(row["score"]) and (row[COST] or 0.0) > 0]
    shown = replace(rows, rows=sorted(points, key=lambda row: (row[COST], row["score"])), notes=[])
    panels = grouped_by(shown.rows, itemgetter(*COST_PANEL))
    # cells are sorted by cost
    panels = {key: cells for key, cells in panels.items() if cells[-1][COST] >= SPREAD * cells[0][COST]}
    if not panels:
        return None
    across = min(len(panels), 2)
    with svg.canvas(4.6 * across + 0.4, 3.4 * -(-len(panels) // across), len(panels), across) as (figure, all_axes):
        for axes, (key, of_panel) in zip(all_axes, panels.items()):
            _draw_points(axes, of_panel, names)
            axes.set_title(svg.wrapped(svg.label_text(f"{key[0]} {key[2]} on {key[1]}"), 2.6, 10))
            axes.set_xlabel("GFLOP per image (forward pass)")
            axes.set_ylabel(svg.label_text(key[2], 24))
            svg.logarithmic(axes.xaxis, [row[COST] for row in of_panel])
        return svg.finished_plot(figure, all_axes, csv(shown))


def _draw_points(axes: Any, points: Sequence[Row], names: Mapping[str, str]) -> None:
    """Draw the points of a panel, with the names of the variants of all runs."""
    for row in points:
        name = names[row["run"][0]]
        number, color = svg.number_of(name, names), svg.color_of(name, names)
        shape = SHAPES[(number + number // len(svg.OKABE_ITO)) % len(SHAPES)]
        spread = 0.0 if is_missing(row["score_sd"]) else row["score_sd"]
        score = f"{row['score']:.2f} ± {spread:.2f}" if spread else f"{row['score']:.2f}"
        about = f"{name}: {row['metric']} {score}, {row['seeds']} seeds, {COST} {row[COST]:.4g}; {row['run'][0]}"
        axes.errorbar(row[COST], row["score"], yerr=spread, fmt="none", ecolor=color, alpha=0.6)
        look = {"s": 42, "facecolors": "none", "edgecolors": color, "marker": shape, "linewidths": 1.8}
        look |= {"label": svg.label_text(name, 120), "zorder": 3, "gid": svg.mark(about, row["run"][0], name)}
        axes.scatter([row[COST]], [row["score"]], **look)
    best = [row for row in points if row[f"pareto_{COST}"]]
    for protocol in dict.fromkeys(cell_text(row["protocol"]) for row in best):
        front = [(row[COST], row["score"]) for row in best if cell_text(row["protocol"]) == protocol]
        axes.plot(*zip(*front), color=svg.INK, linewidth=1.1, drawstyle="steps-post")
    if best:
        ringed = {"facecolors": "none", "edgecolors": svg.INK, "zorder": 4, "label": "Pareto front"}
        axes.scatter([row[COST] for row in best], [row["score"] for row in best], s=110, **ringed)


CURVE_POINTS = 200  # largest number of points of a curve
DOTS = {"marker": "o", "markersize": 4}


def training_curves(runs: StoredRuns, names: Mapping[str, str]) -> svg.Plot:
    """Plot the loss of each run against the step, thinned to `CURVE_POINTS` values.

    A cross marks the last finite loss of a failed run. Columns of the CSV: run, status, step, loss.

    Args:
        runs: the runs.
        names: the variant of each run of the report, by its id.
    """
    curves = [(run.record, curve) for run in runs if (curve := _losses(run.folder))]
    ends = {record.run_id: "" if record.status == "completed" else f", {record.status}" for record, _ in curves}
    looks = svg.looks({record.run_id: f" seed {record.seed}{ends[record.run_id]}" for record, _ in curves}, names)
    rows = list[Row]()
    with svg.canvas(8.5, 4.2) as (figure, (axes,)):
        for record, curve in curves:
            run = record.run_id
            rows += [{"run": run, "status": record.status, "step": step, "loss": loss} for step, loss in curve]
            step, loss = curve[-1]
            about = f"{run}: seed {record.seed}, loss {loss:.4g} at step {step}{ends[run]}"
            look = {**looks[run], **DOTS, "markevery": [-1]}  # a place to point at
            axes.plot(*zip(*curve), linewidth=1.4, gid=svg.mark(about, run, names[run]), **look)
            if record.training_failed:
                axes.plot(step, loss, marker="x", markersize=9, markeredgewidth=2.2, color=look["color"])
        values = [row["loss"] for row in rows]
        if values and min(values) > 0 and max(values) > 100 * min(values):
            svg.logarithmic(axes.yaxis, values)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        return svg.finished_plot(figure, [axes], csv(Table.from_rows(rows)))


def _losses(folder: Path) -> list[tuple[int, float]]:
    """Return at most `CURVE_POINTS` finite (step, loss) pairs of a run, including the first and the last."""
    entries = [(entry.get("step"), entry["loss"]) for entry in history(folder, "loss")]
    pairs = [(step, float(loss)) for step, loss in entries if None not in (step, loss)]
    return [pairs[round(place)] for place in np.linspace(0, len(pairs) - 1, min(len(pairs), CURVE_POINTS))]


def similarity_plot(table: Table, names: Mapping[str, str]) -> svg.Plot:
    """Plot the similarity of tokens at every place, a curve for each configuration (arXiv 2109.03810, Figure 1).

    Args:
        table: `transfer.report.tables.scores.layer_table` of runs of task `tokens`.
        names: the variant of each run of the report, by its id.
    """
    curves = grouped_by(table.rows, lambda row: row[RUN][0])
    # of the deepest network first, which has the places of the others
    deepest_first = sorted(curves.values(), key=len, reverse=True)
    places = list(dict.fromkeys(row["place"] for row in chain.from_iterable(deepest_first)))
    with svg.canvas(max(7.0, 0.36 * len(places) + 3.5), 4.2) as (figure, (axes,)):
        for run, look in svg.looks(dict.fromkeys(curves, ""), names).items():
            cells = [row for row in curves[run] if not is_missing(row["similarity"])]
            if cells:
                about = f"{run}: similarity {cells[-1]['similarity']:.3f} at the end"
                x, y = [places.index(row["place"]) for row in cells], [row["similarity"] for row in cells]
                axes.plot(x, y, gid=svg.mark(about, run, names[run]), **look, **DOTS)
        step = -(-len(places) // 14) if svg.is_narrow() else 1
        names_of = [svg.label_text(place, 12 if svg.is_narrow() else 24) for place in places]
        axes.set_xticks(range(0, len(places), step), names_of[::step], rotation=90)
        axes.set_ylabel("cosine similarity of tokens")
        return svg.finished_plot(figure, [axes], csv(replace(table, notes=[])))


ENDINGS = {
    "nonfinite": ("#d55e00", "xx", "not finite"),
    "diverged": ("#e69f00", "//", "diverged"),
    "collapsed": ("#cc79a7", "..", "collapsed"),
    "at_chance": ("#a6a6a6", "--", "at chance"),
    "score_at_chance": ("#d9d9d9", "||", "score at chance"),
    "not_judged": ("#ffffff", "", "not judged"),
}
"""Color, hatch and label of each outcome but `completed`, any two of which distinguish it."""
LOW, HIGH = (0.87, 0.92, 0.97), (0.03, 0.27, 0.52)
"""Colors of the lowest and the highest score: red, green and blue in [0, 1]."""
UNIT_X, UNIT_Y = 1.02, 0.52
"""Width and height of a cell in inches."""


def heat_map(rows: StabilityMap) -> svg.Plot:
    """Draw a stability map.

    A completed cell has the color and the text of its score in percent; any other cell has the color, hatch and label
    of its status, below its score if it has one. If only some seeds failed, a second line counts them. Text that does
    not fit its cell is omitted, since the legend has the hatches. Cells that were not run stay empty.
    """
    panels = rows.panels()
    values = dict[str, list[Any]]()
    for axis in (rows.x, rows.y):
        values[axis] = sorted({*map(_value, rows[axis])}, key=lambda value: (value is not None, order(value)))
    across = max(min(len(panels), int(11 / (UNIT_X * len(values[rows.x]) + 1))), 1)
    width = across * (UNIT_X * max(len(values[rows.x]), 2) + 1.0)
    height = -(-len(panels) // across) * (UNIT_Y * len(values[rows.y]) + 0.85) + 0.4
    completed = [row for row in rows.rows if row["outcome"] == "completed"]
    scores = values_by_key((row["metric"], row["score"]) for row in completed if not is_missing(row["score"]))
    with svg.canvas(width, height, max(len(panels), 1), across) as (figure, all_axes):
        inches = figure.get_figwidth() / (1 if svg.is_narrow() else across) - 0.9
        for axes, (title, panel) in zip(all_axes, panels):
            _draw_cells(axes, panel.rows, values, scores, inches / len(values[rows.x]))
            axes.set_title(svg.wrapped(svg.label_text(title, 120), inches, 10))
        _legend(figure, rows)
        return svg.plot_of(figure, csv(rows))


def _value(value: Any) -> Any:
    """Return a value of a cell, None for nan."""
    return None if is_missing(value) else value


def _draw_cells(
    axes: Any, cells: Sequence[Row], values: Mapping[str, list[Any]], scores: Mapping[str, list[float]], inches: float
) -> None:
    """Draw a panel.

    Args:
        values: those of both axes, in order, by the axes' names.
        scores: those of the completed cells of all panels, by metric.
        inches: width of a cell.
    """
    x, y = values
    for cell in cells:
        place = values[x].index(_value(cell[x])), values[y].index(_value(cell[y]))
        _cell(axes, place, cell, f"{x} {value_label(cell[x])}, {y} {value_label(cell[y])}", scores, inches)
    for name, put, limit in ((x, axes.set_xticks, axes.set_xlim), (y, axes.set_yticks, axes.set_ylim)):
        labels = [svg.label_text(value_label(value), 14) for value in values[name]]
        level = name == y or all(svg.fits(label, inches, 10) for label in labels)
        put(range(len(labels)), labels, rotation=0 if level else 90)
        limit(-0.5, len(labels) - 0.5)
    axes.set_xlabel(svg.label_text(x.replace("_", " ")))
    axes.set_ylabel(svg.label_text(y.replace("_", " ")))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_alpha(0.3)


def _cell(
    axes: Any, place: tuple[int, int], cell: Row, name: str, scores: Mapping[str, list[float]], inches: float
) -> None:
    """Draw a cell with its text, as far as it fits a width in inches."""
    from matplotlib.patches import Rectangle

    score, failed, runs = _value(cell["score"]), cell["failed"], cell.get("run") or ("",)
    completed = cell["outcome"] == "completed"
    look: tuple[Any, str, str] = (LOW, "", "completed") if completed else ENDINGS[cell["outcome"]]
    back, hatch, word = look
    if score is not None:
        word = f"{score:.1f}" if completed else f"{score:.1f}\n{word.removeprefix('score ')}"
        back = _shade(score, scores[cell["metric"]]) if completed else back
    if 0 < failed.broken < failed.judged:
        word = f"{word.partition(chr(10))[0]}\n{failed.broken}/{failed.judged} failed"
    word = next((text for text in (word, word.partition("\n")[0]) if svg.fits(text, inches)), "")
    about = f"{name}: {cell_text(cell['statuses'])}"
    about += "" if score is None else f", {cell['metric']} {score:.2f}"
    corner = (place[0] - 0.47, place[1] - 0.46)
    patch = Rectangle(corner, 0.94, 0.92, facecolor=back, edgecolor="#00000055", hatch=hatch, linewidth=0)
    patch.set_gid(svg.mark(about, runs[0]))
    axes.add_patch(patch)
    ink = "#ffffff" if completed and sum(back) < 1.5 else "#0b2239"
    shown = axes.text(*place, word, ha="center", va="center", color=ink, fontsize=svg.SMALL_TEXT)
    if word and not completed:
        shown.set_bbox({"facecolor": back, "edgecolor": "none", "pad": 1.2})


def _shade(score: float, scores: Sequence[float]) -> tuple[float, ...]:
    """Return the color of a score, linear between those of the lowest and the highest of `scores`."""
    low, high = min(scores), max(scores)
    share = (score - low) / (high - low) if high > low else 0.5
    return tuple(start + share * (end - start) for start, end in zip(LOW, HIGH))


def _legend(figure: Any, rows: StabilityMap) -> None:
    """Draw the legend of the statuses that the map shows."""
    from matplotlib.patches import Patch

    shown = {}
    if not all(map(is_missing, rows["score"])):
        levels = sorted({f"{level:.3g}" for level in rows["chance"] if not is_missing(level)})
        chance = f" (chance level {', '.join(levels)})" if levels else ""
        shown[f"score in percent{chance}"] = Patch(facecolor=HIGH)
    for ending, (color, hatch, word) in ENDINGS.items():
        if ending in rows["outcome"]:
            shown[word] = Patch(facecolor=color, hatch=hatch, edgecolor="#00000055")
    svg.draw_legend(figure, shown)
