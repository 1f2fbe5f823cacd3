"""Plots of a report as SVG, each with the same rows as CSV."""

import math
import re
from collections.abc import Sequence

from transfer.records.grouping import grouped
from transfer.records.store import Run, history
from transfer.report.figures.cost import cost_plot
from transfer.report.figures.stability_map import heat_map
from transfer.report.figures.svg import LINES, Plot, canvas, finish, logarithmic, look, plain, say_cut, to_svg
from transfer.report.figures.tokens import similarity_by_epoch, similarity_plot

__all__ = ["Plot", "cost_plot", "heat_map", "histories", "similarity_by_epoch", "similarity_plot"]


def histories(runs: Sequence[Run], name: str = "loss", *, points: int = 200) -> Plot:
    """A value of the training histories against the step, thinned to about `points` of each run.

    A cross marks the last finite value of a training that broke down. Columns of the CSV: run, status, step and `name`.
    """
    import pandas as pd

    found = [(run, _history(run, name, points)) for run in runs[:LINES]]
    groups = grouped([run.record for run in runs])[0]
    names = {record.run_id: group.backbone for group in groups for record in group.records}
    rows = [(run.record.run_id, run.record.outcome["status"], *point) for run, curve in found for point in curve]
    table = pd.DataFrame(rows, columns=["run", "status", "step", name])
    with canvas(8.5, 4.2) as (figure, (axes,)):
        for number, (run, curve) in enumerate(found):
            if not curve:
                continue
            record, style = run.record, look(number)
            status = f", {record.outcome['status']}" if record.training_failed else ""
            label = f"{plain(names[record.run_id], 48)} seed {record.seed}{status} {record.run_id[-6:]}"
            axes.plot(*zip(*curve), label=plain(label, 80), linewidth=1.4, **style)
            if record.training_failed:
                axes.plot(*curve[-1], marker="x", markersize=9, markeredgewidth=2.2, color=style["color"])
        values = table[name]
        if len(values) and values.min() > 0 and values.max() > 100 * values.min():
            logarithmic(axes.yaxis, values)
        axes.set_xlabel("step")
        axes.set_ylabel(plain(name))
        say_cut(figure, len(found), len(runs), "runs")
        finish(figure, [axes])
        return Plot(to_svg(figure, f"history-{re.sub('[^a-z0-9]+', '-', name.lower())}"), table.to_csv(index=False))


def _history(run: Run, name: str, points: int) -> list[tuple[int, float]]:
    """Finite (step, value) pairs, the first and the last among them; none where there is no history."""
    found = []
    for entry in history(run.folder):
        step, value = entry.get("step"), entry.get(name)
        if isinstance(step, int) and isinstance(value, (int, float)) and math.isfinite(value):
            found.append((step, float(value)))
    if len(found) <= points:
        return found
    return [found[round(place * (len(found) - 1) / (points - 1))] for place in range(points)]
