"""Training curves of runs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transfer.engine.checkpoint import history
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import (
    LINES,
    Looks,
    Mark,
    Plot,
    arm_names,
    canvas,
    finish,
    for_both_widths,
    is_narrow,
    logarithmic,
    note_omitted,
    plain,
    plot_of,
)
from transfer.report.tables.table import Column, Row, Table, is_missing
from transfer.report.tables.text import csv
from transfer.report.tables.tokens import LayerHistories

POINTS = 200  # largest number of points of a curve


@for_both_widths
def training_curves(runs: RunSet) -> Plot:
    """Plot the loss of each run against the step, thinned to `POINTS` values.

    A cross marks the last finite loss of a failed run. Columns of the CSV: run, status, step, loss.
    """
    names = arm_names(runs.backbone_names)
    curves = [(run, _losses(run.folder)) for run in runs.runs[:LINES]]
    columns = [Column("run"), Column("status"), Column("step"), Column("loss")]
    with canvas(8.5, 4.2) as (figure, (axes,)):
        looks, marks = Looks(), []
        for number, (run, curve) in enumerate(curves):
            if not curve:
                continue
            record, style = run.record, looks.of(names[run.record.run_id], number)
            status = f", {record.status}" if record.status != "completed" else ""
            label = looks.label(f"{plain(names[record.run_id], 120)} seed {record.seed}{status}", record.run_id)
            gid = f"curve-{number}"
            last = {"marker": "o", "markersize": 4, "markevery": [-1]}  # a place to point at
            axes.plot(*zip(*curve), label=label, linewidth=1.4, gid=gid, **last, **style)
            told = f"{record.run_id}: seed {record.seed}, loss {curve[-1][1]:.4g} at step {curve[-1][0]}{status}"
            marks.append(Mark(gid, told, record.run_id, names[record.run_id]))
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


BACKBONE = {"backbone": "name", "stem": "stem"}
MEASURED = ("place", "kind", "similarity", "similarity_sd")
COLUMNS = ("run", *BACKBONE, *MEASURED)
PANELS = {"stem": "behind the stem", "positions": "behind positions", "block": "behind the last block"}
"""Title of each kind of place; of several places of a kind the last one is shown."""


@for_both_widths
def similarity_plot(runs: RunSet) -> Plot:
    """Plot the similarity of tokens at every place, a curve for each run of task `tokens` (arXiv 2109.03810, Figure 1).

    Columns of the CSV: run, backbone, stem, place, kind, similarity, similarity_sd.
    """
    curves = {run.record.run_id: _curve(run.record) for run in runs}
    curves = {run: rows for run, rows in curves.items() if rows}
    places = merged_order([row["place"] for row in rows] for rows in curves.values())
    with canvas(max(7.0, 0.36 * len(places) + 3.5), 4.2) as (figure, (axes,)):
        names, looks, marks = arm_names(runs.backbone_names), Looks(), []
        for number, (run, rows) in enumerate(list(curves.items())[:LINES]):
            points = [row for row in rows if not is_missing(row["similarity"])]
            if not points:
                continue
            positions = [places.index(row["place"]) for row in points]
            label = looks.label(plain(names[run], 120), run)
            similarities = [row["similarity"] for row in points]
            style, gid = looks.of(names[run], number), f"curve-{number}"
            axes.plot(positions, similarities, marker="o", markersize=4, label=label, gid=gid, **style)
            marks.append(Mark(gid, f"{run}: similarity {points[-1]['similarity']:.3f} at the end", run, names[run]))
        step = -(-len(places) // 14) if is_narrow() else 1
        names_of = [plain(place, 12 if is_narrow() else 24) for place in places]
        axes.set_xticks(range(0, len(places), step), names_of[::step], rotation=90)
        axes.set_ylabel("cosine similarity of tokens")
        note_omitted(figure, min(len(curves), LINES), len(curves), "runs")
        finish(figure, [axes])
        table = Table([Column(name) for name in COLUMNS], [row for rows in curves.values() for row in rows])
        return plot_of(figure, "similarity", csv(table), marks)


def _curve(record: Record) -> list[Row]:
    about = {"run": record.run_id, **{key: record.backbone.get(name) for key, name in BACKBONE.items()}}
    return [about | {name: layer.get(name) for name in MEASURED} for layer in record.details.get("layers", [])]


def merged_order(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the places of all lists, in the order of each list if the lists agree on one."""
    merged: list[str] = []
    for places in lists:
        position = 0
        for place in places:
            if place not in merged:
                merged.insert(position, place)
            position = merged.index(place) + 1
    return merged


@for_both_widths
def similarity_by_epoch(runs: RunSet, layer_histories: LayerHistories) -> Plot:
    """Plot the similarity of tokens at three places against the epoch, a curve for each training with diagnostics.

    Columns of the CSV: run, backbone, epoch, place, kind, and the diagnostics of the place, as in the record of task
    `tokens`.
    """
    names = arm_names(runs.backbone_names)
    ids = [run.record.run_id for run in runs if layer_histories.get(run.record.run_id)]
    table = Table.from_rows(
        {"run": run, "backbone": names[run], "epoch": entry["epoch"]} | layer
        for run in ids
        for entry in layer_histories[run]
        for layer in entry["layers"]
    )
    with canvas(11.0, 3.4, panels=len(PANELS), across=len(PANELS)) as (figure, panels):
        for axes, (kind, title) in zip(panels, PANELS.items()):
            looks = Looks()
            for number, run in enumerate(ids[:LINES]):
                curve = _last_of(kind, layer_histories[run])
                label = looks.label(plain(names[run], 120), run)
                axes.plot(
                    [*curve], [*curve.values()], marker="o", markersize=4, label=label, **looks.of(names[run], number)
                )
            axes.set_title(title)
            axes.set_xlabel("epoch")
        panels[0].set_ylabel("cosine similarity of tokens")
        note_omitted(figure, min(len(ids), LINES), len(ids), "runs")
        finish(figure, panels)
        return plot_of(figure, "similarity-by-epoch", csv(table))


def _last_of(kind: str, lines: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the similarity at the last place of a kind, by epoch, where it is defined."""
    by_epoch: dict[int, float] = {}
    for entry in lines:
        values = [layer["similarity"] for layer in entry["layers"] if layer["kind"] == kind]
        if values and values[-1] is not None:
            by_epoch[entry["epoch"]] = values[-1]
    return by_epoch
