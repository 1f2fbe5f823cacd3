"""Plots of what task `tokens` measures: over the places of a backbone, and over the epochs of its training."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import LINES, Plot, canvas, finish, look, note_omitted, plain, to_svg
from transfer.report.tables.render import csv
from transfer.report.tables.table import Column, Row, Table, is_missing

BACKBONE = {"backbone": "name", "stem": "stem"}
MEASURED = ("place", "kind", "similarity", "similarity_sd")
COLUMNS = ("run", *BACKBONE, *MEASURED)
PANELS = {"stem": "behind the stem", "positions": "behind positions", "block": "behind the last block"}
"""Kind of place -> title; of several places of a kind the last one counts."""


def similarity_plot(runs: RunSet) -> Plot:
    """Similarity of tokens at every place, a curve for each run of task `tokens` (Figure 1 of arXiv 2109.03810).

    Columns of the CSV: run, backbone, stem, place, kind, similarity, similarity_sd.
    """
    curves = {run.record.run_id: _curve(run.record) for run in runs}
    curves = {run: rows for run, rows in curves.items() if rows}
    places = merged_order([row["place"] for row in rows] for rows in curves.values())
    with canvas(max(7.0, 0.36 * len(places) + 3.5), 4.2) as (figure, (axes,)):
        for number, (run, rows) in enumerate(list(curves.items())[:LINES]):
            points = [row for row in rows if not is_missing(row["similarity"])]
            at = [places.index(row["place"]) for row in points]
            name = plain(f"{rows[0]['backbone']}, stem {rows[0]['stem']}", 40)
            label = f"{name} {plain(run[-6:])}"
            similarities = [row["similarity"] for row in points]
            axes.plot(at, similarities, marker="o", markersize=4, label=label, **look(number))
        axes.set_xticks(range(len(places)), [plain(place, 24) for place in places], rotation=60, ha="right")
        axes.set_ylabel("cosine similarity of tokens")
        note_omitted(figure, min(len(curves), LINES), len(curves), "runs")
        finish(figure, [axes])
        table = Table([Column(name) for name in COLUMNS], [row for rows in curves.values() for row in rows])
        return Plot(to_svg(figure, "similarity"), csv(table))


def _curve(record: Record) -> list[Row]:
    about = {"run": record.run_id, **{key: record.backbone.get(name) for key, name in BACKBONE.items()}}
    return [about | {name: layer.get(name) for name in MEASURED} for layer in record.details.get("layers", [])]


def merged_order(lists: Iterable[Iterable[str]]) -> list[str]:
    """The places of all lists, each list's own in its order wherever the lists agree on one."""
    merged: list[str] = []
    for places in lists:
        at = 0
        for place in places:
            if place not in merged:
                merged.insert(at, place)
            at = merged.index(place) + 1
    return merged


def similarity_by_epoch(runs: RunSet, looks: Mapping[str, Sequence[Mapping[str, Any]]]) -> Plot:
    """Similarity of tokens at three places against the epoch, a curve for each training that was looked at.

    Args:
        looks: by run id the lines of its history that have `layers`.

    Columns of the CSV: run, backbone, epoch, place, kind, and what was measured there, as in the record of task
    `tokens`.
    """
    names = runs.backbone_names
    ids = [run.record.run_id for run in runs if looks.get(run.record.run_id)]
    table = Table.from_rows(
        {"run": run, "backbone": names[run], "epoch": entry["epoch"]} | layer
        for run in ids
        for entry in looks[run]
        for layer in entry["layers"]
    )
    with canvas(11.0, 3.4, panels=len(PANELS), across=len(PANELS)) as (figure, panels):
        for axes, (kind, title) in zip(panels, PANELS.items()):
            for number, run in enumerate(ids[:LINES]):
                curve = _last_of(kind, looks[run])
                label = plain(f"{names[run]} {run[-6:]}", 60)
                axes.plot([*curve], [*curve.values()], marker="o", markersize=4, label=label, **look(number))
            axes.set_title(title)
            axes.set_xlabel("epoch")
        panels[0].set_ylabel("cosine similarity of tokens")
        note_omitted(figure, min(len(ids), LINES), len(ids), "runs")
        finish(figure, panels)
        return Plot(to_svg(figure, "similarity-by-epoch"), csv(table))


def _last_of(kind: str, looks: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """By epoch the similarity at the last place of a kind, where it is defined."""
    by_epoch: dict[int, float] = {}
    for entry in looks:
        values = [layer["similarity"] for layer in entry["layers"] if layer["kind"] == kind]
        if values and values[-1] is not None:
            by_epoch[entry["epoch"]] = values[-1]
    return by_epoch
