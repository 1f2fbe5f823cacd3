"""Scores against their costs: a panel for each task and data set, with its Pareto front and a fit."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from transfer.report.figures.svg import (
    COLOURS,
    INK,
    Mark,
    Plot,
    arm_number,
    canvas,
    finish,
    logarithmic,
    note_omitted,
    plain,
    plot_of,
)
from transfer.report.render.text import csv
from transfer.report.tables.cell_text import cell_text
from transfer.report.tables.cost_fit import cost_fits
from transfer.report.tables.costs import KIND_OF, CostTable
from transfer.report.tables.table import Row, Table, is_missing

PANEL = ("task", "dataset", "metric")
SHAPES = "osD^vPX*"
PANELS = 12
UNITS = {"gflops": "GFLOPs of an image", "params_million": "parameters in millions", "ms_per_image": "ms per image"}


def cost_plot(rows: CostTable, cost: str = "total_hours") -> Plot:
    """Draw a cost table: score against cost on a logarithmic axis, the points of the Pareto front ringed and joined.

    A fit (see `transfer.report.tables.cost_fit.cost_fits`) is drawn with its 95 % interval if there are enough points.
    The CSV has the rows that are drawn, which are those with a positive cost and a score.

    Args:
        cost: one of `transfer.report.tables.costs.COSTS`.
    """
    series = list(rows.by) or ["backbone"]
    kept = rows.where(lambda row: not is_missing(row[cost]) and row[cost] > 0 and not is_missing(row["score"]))
    kept.rows.sort(key=lambda row: (row[cost], row["score"]))
    all_panels = _panels(kept, [*PANEL, *([KIND_OF[cost]] if cost in KIND_OF else [])])
    panels = dict(list(all_panels.items())[:PANELS])
    fits = cost_fits(rows, cost)
    keys = {_series(row, series): " ".join(str(row[name]) for name in series) for row in kept.rows}
    labels = {key: arm_number(name, number) for number, (key, name) in enumerate(keys.items())}
    across = min(max(len(panels), 1), 2)
    with canvas(4.6 * across + 2.4, 3.9 * -(-max(len(panels), 1) // across), max(len(panels), 1), across) as (
        figure,
        all_axes,
    ):
        marks: list[Mark] = []
        for axes, (key, points) in zip(all_axes, panels.items()):
            _panel(axes, points, cost, series, labels, marks)
            of_panel = {fit_key[len(key) :]: fit for fit_key, fit in fits.items() if fit_key[: len(key)] == key}
            for of_series, fit in of_panel.items():
                name = plain(" ".join(map(str, of_series)), 40)
                colour = COLOURS[labels[name] % len(COLOURS)] if of_series else INK
                axes.plot(fit.curve["cost"], fit.curve["score"], color=colour, linewidth=1.3)
                axes.fill_between(fit.curve["cost"], fit.curve["low"], fit.curve["high"], color=colour, alpha=0.13)
            axes.set_title(plain(" · ".join(map(str, key[:2]))))
            axes.set_xlabel(UNITS.get(cost) or f"{key[-1]} hours ({cost.removesuffix('_hours')})")
            axes.set_ylabel(plain(key[2]))
            logarithmic(axes.xaxis, [row[cost] for row in points])
        finish(figure, all_axes)
        note_omitted(figure, len(panels), len(all_panels), "panels")
        return plot_of(figure, f"cost-{re.sub('[^a-z0-9]+', '-', cost.lower())}", csv(kept), marks)


def _panels(rows: Table, names: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows of each panel, in order of appearance."""
    panels: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows.rows:
        panels.setdefault(tuple(row[name] for name in names), []).append(row)
    return panels


def _series(row: Row, names: Sequence[str]) -> str:
    """Return the name of a row's series."""
    return plain(" ".join(str(row[name]) for name in names), 40)


def _mark(row: Row, cost: str, gid: str) -> Mark:
    """Return what is said of a configuration."""
    deviation = "" if is_missing(row["score_sd"]) or not row["score_sd"] else f" ± {row['score_sd']:.2f}"
    name, runs = str(row["backbone"]), row["run"]
    told = f"{name}: {row['metric']} {row['score']:.2f}{deviation}, {row['seeds']} seeds, {cost} {row[cost]:.4g}"
    return Mark(gid, f"{told}; {runs[0]}" if runs else told, runs[0] if runs else "", name)


def _panel(
    axes: Any, points: Sequence[Row], cost: str, series: Sequence[str], labels: Mapping[str, int], marks: list[Mark]
) -> None:
    """Draw the points of a panel, and add what is said of each to `marks`."""
    for label in dict.fromkeys(_series(row, series) for row in points):
        number, of_series = labels[label], [row for row in points if _series(row, series) == label]
        shape = SHAPES[number // len(COLOURS) % len(SHAPES)]
        colour = COLOURS[number % len(COLOURS)]
        costs, scores = [row[cost] for row in of_series], [row["score"] for row in of_series]
        deviations = [0.0 if is_missing(row["score_sd"]) else row["score_sd"] for row in of_series]
        axes.errorbar(costs, scores, yerr=deviations, fmt="none", ecolor=colour, alpha=0.6)
        for row in of_series:
            marks.append(_mark(row, cost, f"point-{len(marks)}"))
            look = {"s": 42, "color": colour, "marker": shape, "label": label, "zorder": 3, "gid": marks[-1].gid}
            axes.scatter([row[cost]], [row["score"]], **look)
    best = [row for row in points if row[f"pareto_{cost}"]]
    for protocol in dict.fromkeys(cell_text(row["protocol"]) for row in best):
        front = [row for row in best if cell_text(row["protocol"]) == protocol]
        costs, scores = [row[cost] for row in front], [row["score"] for row in front]
        axes.plot(costs, scores, color=INK, linewidth=1.1, drawstyle="steps-post")
    ringed = {"facecolors": "none", "edgecolors": INK, "zorder": 4, "label": "Pareto front"}
    axes.scatter([row[cost] for row in best], [row["score"] for row in best], s=110, **ringed)
