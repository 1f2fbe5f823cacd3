"""Training curves of runs."""

from pathlib import Path

from transfer.records.run_set import RunSet
from transfer.records.store import history
from transfer.report.figures.svg import (
    LINES,
    Looks,
    Mark,
    Plot,
    canvas,
    finish,
    for_both_widths,
    logarithmic,
    note_omitted,
    plain,
    plot_of,
)
from transfer.report.render.text import csv
from transfer.report.tables.table import Column, Table

POINTS = 200  # largest number of points of a curve


@for_both_widths
def training_curves(runs: RunSet) -> Plot:
    """Plot the loss of each run against the step, thinned to `POINTS` values.

    A cross marks the last finite loss of a failed run. Columns of the CSV: run, status, step, loss.
    """
    curves = [(run, _losses(run.folder)) for run in runs.runs[:LINES]]
    columns = [Column("run"), Column("status"), Column("step"), Column("loss")]
    with canvas(8.5, 4.2) as (figure, (axes,)):
        looks, marks = Looks(), []
        for number, (run, curve) in enumerate(curves):
            if not curve:
                continue
            record, style = run.record, looks.of(runs.backbone_names[run.record.run_id], number)
            status = f", {record.status}" if record.status != "completed" else ""
            backbone = plain(runs.backbone_names[record.run_id], 120)
            label = looks.label(f"{backbone} seed {record.seed}{status}", record.run_id)
            gid = f"curve-{number}"
            last = {"marker": "o", "markersize": 4, "markevery": [-1]}  # a place to point at
            axes.plot(*zip(*curve), label=label, linewidth=1.4, gid=gid, **last, **style)
            told = f"{record.run_id}: seed {record.seed}, loss {curve[-1][1]:.4g} at step {curve[-1][0]}{status}"
            marks.append(Mark(gid, told, record.run_id, runs.backbone_names[record.run_id]))
            if record.training_failed:
                axes.plot(*curve[-1], marker="x", markersize=9, markeredgewidth=2.2, color=style["color"])
        values = [value for _, curve in curves for _, value in curve]
        if values and min(values) > 0 and max(values) > 100 * min(values):
            logarithmic(axes.yaxis, values)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        note_omitted(figure, len(curves), len(runs), "runs")
        finish(figure, [axes])
        rows = [
            {"run": run.record.run_id, "status": run.record.status, "step": step, "loss": value}
            for run, curve in curves
            for step, value in curve
        ]
        return plot_of(figure, "history-loss", csv(Table(columns, rows)), marks)


def _losses(folder: Path) -> list[tuple[int, float]]:
    """Return at most `POINTS` finite (step, loss) pairs of a run, including the first and the last."""
    pairs = []
    for entry in history(folder):
        step, value = entry.get("step"), entry.get("loss")
        if step is not None and value is not None:
            pairs.append((step, float(value)))
    if len(pairs) <= POINTS:
        return pairs
    return [pairs[round(place * (len(pairs) - 1) / (POINTS - 1))] for place in range(POINTS)]
