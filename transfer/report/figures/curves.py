"""Curves of runs: their losses while training, and the similarity of their tokens layer by layer."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from transfer.engine.checkpoint import history
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import (
    Plot,
    canvas,
    finish,
    is_narrow,
    logarithmic,
    looks,
    mark,
    plain,
    plot_of,
)
from transfer.report.tables.table import Table
from transfer.report.tables.text import csv

POINTS = 200  # largest number of points of a curve
DOTS = {"marker": "o", "markersize": 4}


def training_curves(runs: RunSet, names: Mapping[str, str]) -> Plot:
    """Plot the loss of each run against the step, thinned to `POINTS` values.

    A cross marks the last finite loss of a failed run. Columns of the CSV: run, status, step, loss.

    Args:
        runs: the runs.
        names: the variant of each run of the report, by its id.
    """
    curves = [(run.record, curve) for run in runs if (curve := _losses(run.folder))]
    ends = {one.run_id: f", {one.status}" * (one.status != "completed") for one, _ in curves}
    drawn = looks({one.run_id: f" seed {one.seed}{ends[one.run_id]}" for one, _ in curves}, names)
    with canvas(8.5, 4.2) as (figure, (axes,)):
        for one, curve in curves:
            step, loss = curve[-1]
            told = f"{one.run_id}: seed {one.seed}, loss {loss:.4g} at step {step}{ends[one.run_id]}"
            look = {**drawn[one.run_id], **DOTS, "markevery": [-1]}  # a place to point at
            axes.plot(*zip(*curve), linewidth=1.4, gid=mark(told, one.run_id, names[one.run_id]), **look)
            if one.training_failed:
                axes.plot(step, loss, marker="x", markersize=9, markeredgewidth=2.2, color=look["color"])
        values = [value for _, curve in curves for _, value in curve]
        if values and min(values) > 0 and max(values) > 100 * min(values):
            logarithmic(axes.yaxis, values)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        finish(figure, [axes])
        rows = [
            {"run": one.run_id, "status": one.status, "step": step, "loss": value}
            for one, curve in curves
            for step, value in curve
        ]
        return plot_of(figure, csv(Table.from_rows(rows)))


def _losses(folder: Path) -> list[tuple[int, float]]:
    """Return at most `POINTS` finite (step, loss) pairs of a run, including the first and the last."""
    known = [(entry.get("step"), entry.get("loss")) for entry in history(folder)]
    pairs = [(step, float(loss)) for step, loss in known if step is not None and loss is not None]
    return [pairs[round(place)] for place in np.linspace(0, len(pairs) - 1, min(len(pairs), POINTS))]


MEASURED = ("place", "kind", "similarity", "similarity_sd")


def similarity_plot(runs: RunSet, names: Mapping[str, str]) -> Plot:
    """Plot the similarity of tokens at every place, a curve for each run of task `tokens` (arXiv 2109.03810, Figure 1).

    Columns of the CSV: run, backbone, stem, place, kind, similarity, similarity_sd.

    Args:
        runs: the runs.
        names: the variant of each run of the report, by its id.
    """
    table = Table.from_rows(
        {"run": record.run_id, "backbone": record.backbone.get("name"), "stem": record.backbone.get("stem")}
        | {name: layer.get(name) for name in MEASURED}
        for record in runs.records
        for layer in record.details.get("layers", [])
    )
    curves: dict[str, dict[str, float]] = {}
    for row in table.rows:
        curves.setdefault(row["run"], {})[row["place"]] = row["similarity"]
    # of the deepest run first, which has the places of the others
    places = list(dict.fromkeys(place for of_run in sorted(curves.values(), key=len, reverse=True) for place in of_run))
    with canvas(max(7.0, 0.36 * len(places) + 3.5), 4.2) as (figure, (axes,)):
        for run, look in looks(dict.fromkeys(curves, ""), names).items():
            curve = [(places.index(place), value) for place, value in curves[run].items() if value is not None]
            if curve:
                told = f"{run}: similarity {curve[-1][1]:.3f} at the end"
                axes.plot(*zip(*curve), gid=mark(told, run, names[run]), **look, **DOTS)
        step = -(-len(places) // 14) if is_narrow() else 1
        names_of = [plain(place, 12 if is_narrow() else 24) for place in places]
        axes.set_xticks(range(0, len(places), step), names_of[::step], rotation=90)
        axes.set_ylabel("cosine similarity of tokens")
        finish(figure, [axes])
        return plot_of(figure, csv(table))
