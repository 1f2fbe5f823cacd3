"""Scores against their costs: a panel for each task and dataset, with its Pareto front."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transfer.report.figures.svg import (
    COLORS,
    INK,
    Mark,
    Plot,
    arm_names,
    arm_number,
    canvas,
    finish,
    for_both_widths,
    logarithmic,
    note_omitted,
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
PANELS = 12
SPREAD = 1.05
"""Least ratio of the largest to the smallest cost of a panel: nearer costs are as good as equal."""


@for_both_widths
def cost_plot(rows: Table) -> Plot | None:
    """Draw a cost table: score against operations on a logarithmic axis, with the Pareto front ringed and joined.

    None where the costs on no dataset differ by `SPREAD`. Points are hollow, so that none hides another. The
    CSV has the rows with a positive cost and a score.
    """
    points = [row for row in rows.rows if not is_missing(row[COST]) and row[COST] > 0 and not is_missing(row["score"])]
    kept = replace(rows, rows=sorted(points, key=lambda row: (row[COST], row["score"])), notes=[])
    all_panels: dict[tuple[Any, ...], list[Row]] = {}
    for row in kept.rows:
        all_panels.setdefault(tuple(row[name] for name in PANEL), []).append(row)
    all_panels = {key: of for key, of in all_panels.items() if of[-1][COST] >= SPREAD * of[0][COST]}  # sorted by cost
    if not all_panels:
        return None
    panels = dict(list(all_panels.items())[:PANELS])
    labels = {name: arm_number(name, number) for number, name in enumerate(dict.fromkeys(map(_name, kept.rows)))}
    across = min(len(panels), 2)
    with canvas(4.6 * across + 0.4, 3.4 * -(-len(panels) // across), len(panels), across) as (figure, all_axes):
        marks: list[Mark] = []
        for axes, (key, points) in zip(all_axes, panels.items()):
            _panel(axes, points, labels, marks)
            axes.set_title(wrapped(plain(f"{key[0]} {key[2]} on {key[1]}"), 2.6, 10))
            axes.set_xlabel("GFLOP per image (forward pass)")
            axes.set_ylabel(plain(key[2], 24))
            logarithmic(axes.xaxis, [row[COST] for row in points])
        finish(figure, all_axes)
        note_omitted(figure, len(panels), len(all_panels), "panels")
        return plot_of(figure, "cost-gflops", csv(kept), marks)


def _name(row: Row) -> str:
    """Return the name of a row's variant, as a label."""
    run = row["run"][0] if row["run"] else ""
    return plain(arm_names({run: str(row["backbone"])})[run], 120)


def _mark(row: Row, gid: str) -> Mark:
    """Return what is said of a configuration."""
    deviation = "" if is_missing(row["score_sd"]) or not row["score_sd"] else f" ± {row['score_sd']:.2f}"
    name, runs = _name(row), row["run"]
    told = f"{name}: {row['metric']} {row['score']:.2f}{deviation}, {row['seeds']} seeds, {COST} {row[COST]:.4g}"
    return Mark(gid, f"{told}; {runs[0]}" if runs else told, runs[0] if runs else "", name)


def _panel(axes: Any, points: Sequence[Row], labels: Mapping[str, int], marks: list[Mark]) -> None:
    """Draw the points of a panel, and add what is said of each to `marks`."""
    for label in dict.fromkeys(map(_name, points)):
        number, of_series = labels[label], [row for row in points if _name(row) == label]
        shape = SHAPES[(number + number // len(COLORS)) % len(SHAPES)]
        color = COLORS[number % len(COLORS)]
        costs, scores = [row[COST] for row in of_series], [row["score"] for row in of_series]
        deviations = [0.0 if is_missing(row["score_sd"]) else row["score_sd"] for row in of_series]
        axes.errorbar(costs, scores, yerr=deviations, fmt="none", ecolor=color, alpha=0.6)
        for row in of_series:
            marks.append(_mark(row, f"point-{len(marks)}"))
            look = {"s": 42, "facecolors": "none", "edgecolors": color, "marker": shape, "linewidths": 1.8}
            look |= {"label": label, "zorder": 3, "gid": marks[-1].gid}
            axes.scatter([row[COST]], [row["score"]], **look)
    best = [row for row in points if row[f"pareto_{COST}"]]
    for protocol in dict.fromkeys(cell_text(row["protocol"]) for row in best):
        front = [(row[COST], row["score"]) for row in best if cell_text(row["protocol"]) == protocol]
        axes.plot(*zip(*front), color=INK, linewidth=1.1, drawstyle="steps-post")
    if best:
        ringed = {"facecolors": "none", "edgecolors": INK, "zorder": 4, "label": "Pareto front"}
        axes.scatter([row[COST] for row in best], [row["score"] for row in best], s=110, **ringed)
