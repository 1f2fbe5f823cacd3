"""Scores against their costs: a panel for each dataset and metric, with its Pareto front."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transfer.report.figures.svg import (
    COLORS,
    INK,
    Plot,
    canvas,
    color_of,
    finish,
    logarithmic,
    mark,
    number_of,
    plain,
    plot_of,
    wrapped,
)
from transfer.report.tables.table import Row, Table, cell_text, is_missing
from transfer.report.tables.text import csv

COST = "gflops"
"""Column on the horizontal axis."""
PANEL = ("task", "dataset", "metric")
SHAPES = "osD^vPX*"
SPREAD = 1.05
"""Least ratio of the largest to the smallest cost of a panel: nearer costs are as good as equal."""


def cost_plot(rows: Table, names: Mapping[str, str]) -> Plot | None:
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
    with canvas(4.6 * across + 0.4, 3.4 * -(-len(panels) // across), len(panels), across) as (figure, all_axes):
        for axes, (key, of_panel) in zip(all_axes, panels.items()):
            _panel(axes, of_panel, names)
            axes.set_title(wrapped(plain(f"{key[0]} {key[2]} on {key[1]}"), 2.6, 10))
            axes.set_xlabel("GFLOP per image (forward pass)")
            axes.set_ylabel(plain(key[2], 24))
            logarithmic(axes.xaxis, [row[COST] for row in of_panel])
        finish(figure, all_axes)
        return plot_of(figure, csv(kept))


def _panel(axes: Any, points: Sequence[Row], names: Mapping[str, str]) -> None:
    """Draw the points of a panel, with the names of the variants of all runs."""
    for row in points:
        name = names[row["run"][0]]
        number, color = number_of(name, names), color_of(name, names)
        shape = SHAPES[(number + number // len(COLORS)) % len(SHAPES)]
        spread = 0.0 if is_missing(row["score_sd"]) else row["score_sd"]
        score = f"{row['score']:.2f}" + f" ± {spread:.2f}" * bool(spread)
        told = f"{name}: {row['metric']} {score}, {row['seeds']} seeds, {COST} {row[COST]:.4g}; {row['run'][0]}"
        axes.errorbar(row[COST], row["score"], yerr=spread, fmt="none", ecolor=color, alpha=0.6)
        look = {"s": 42, "facecolors": "none", "edgecolors": color, "marker": shape, "linewidths": 1.8}
        look |= {"label": plain(name, 120), "zorder": 3, "gid": mark(told, row["run"][0], name)}
        axes.scatter([row[COST]], [row["score"]], **look)
    best = [row for row in points if row[f"pareto_{COST}"]]
    for protocol in dict.fromkeys(cell_text(row["protocol"]) for row in best):
        front = [(row[COST], row["score"]) for row in best if cell_text(row["protocol"]) == protocol]
        axes.plot(*zip(*front), color=INK, linewidth=1.1, drawstyle="steps-post")
    if best:
        ringed = {"facecolors": "none", "edgecolors": INK, "zorder": 4, "label": "Pareto front"}
        axes.scatter([row[COST] for row in best], [row["score"] for row in best], s=110, **ringed)
