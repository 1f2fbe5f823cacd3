"""Training histories of runs as a plot."""

import math
import re

from transfer.records.run_set import RunSet
from transfer.records.store import Run, history
from transfer.report.figures.svg import LINES, Plot, canvas, finish, logarithmic, look, note_omitted, plain, to_svg
from transfer.report.tables.render import csv
from transfer.report.tables.table import Column, Table


def histories(runs: RunSet, name: str = "loss", *, points: int = 200) -> Plot:
    """A value of the training histories against the step, thinned to about `points` of each run.

    A cross marks the last finite value of a training that broke down. Columns of the CSV: run, status, step and `name`.
    """
    curves = [(run, _history(run, name, points)) for run in runs.runs[:LINES]]
    columns = [Column("run"), Column("status"), Column("step"), Column(name)]
    with canvas(8.5, 4.2) as (figure, (axes,)):
        for number, (run, curve) in enumerate(curves):
            if not curve:
                continue
            record, style = run.record, look(number)
            status = f", {record.outcome['status']}" if record.training_failed else ""
            backbone = plain(runs.backbone_names[record.run_id], 48)
            label = f"{backbone} seed {record.seed}{status} {record.run_id[-6:]}"
            axes.plot(*zip(*curve), label=plain(label, 80), linewidth=1.4, **style)
            if record.training_failed:
                axes.plot(*curve[-1], marker="x", markersize=9, markeredgewidth=2.2, color=style["color"])
        values = [value for _, curve in curves for _, value in curve]
        if values and min(values) > 0 and max(values) > 100 * min(values):
            logarithmic(axes.yaxis, values)
        axes.set_xlabel("step")
        axes.set_ylabel(plain(name))
        note_omitted(figure, len(curves), len(runs), "runs")
        finish(figure, [axes])
        rows = [
            {"run": run.record.run_id, "status": run.record.outcome["status"], "step": step, name: value}
            for run, curve in curves
            for step, value in curve
        ]
        return Plot(to_svg(figure, f"history-{re.sub('[^a-z0-9]+', '-', name.lower())}"), csv(Table(columns, rows)))


def _history(run: Run, name: str, points: int) -> list[tuple[int, float]]:
    """Finite (step, value) pairs, the first and the last among them; none where there is no history."""
    pairs = []
    for entry in history(run.folder):
        step, value = entry.get("step"), entry.get(name)
        if isinstance(step, int) and isinstance(value, (int, float)) and math.isfinite(value):
            pairs.append((step, float(value)))
    if len(pairs) <= points:
        return pairs
    return [pairs[round(place * (len(pairs) - 1) / (points - 1))] for place in range(points)]
