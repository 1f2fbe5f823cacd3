"""Plots of what task `tokens` measures: over the places of a backbone, and over the epochs of its training."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transfer.records.grouping import grouped
from transfer.records.store import Run
from transfer.report.figures.svg import LINES, Plot, canvas, finish, look, plain, say_cut, to_svg

BACKBONE = {"backbone": "name", "stem": "stem"}
PANELS = {"stem": "behind the stem", "positions": "behind positions", "block": "behind the last block"}
"""Kind of place -> title; of several places of a kind the last one counts."""


def similarity_plot(runs: Sequence[Run]) -> Plot:
    """Similarity of tokens at every place, a curve for each run of task `tokens` (Figure 1 of arXiv 2109.03810).

    Columns of the CSV: run, backbone, stem, place, kind, similarity, similarity_sd.
    """
    import pandas as pd

    rows = pd.DataFrame(
        [
            {"run": run.record.run_id, **{key: run.record.backbone.get(name) for key, name in BACKBONE.items()}}
            | {name: layer.get(name) for name in ("place", "kind", "similarity", "similarity_sd")}
            for run in runs
            for layer in run.record.details.get("layers", [])
        ],
        columns=["run", *BACKBONE, "place", "kind", "similarity", "similarity_sd"],
    )
    places = merged_order(curve["place"] for _, curve in rows.groupby("run", sort=False))
    with canvas(max(7.0, 0.36 * len(places) + 3.5), 4.2) as (figure, (axes,)):
        for number, (run, curve) in enumerate(list(rows.groupby("run", sort=False))[:LINES]):
            points = curve[curve["similarity"].notna()]
            at = [places.index(place) for place in points["place"]]
            name = plain(f"{curve['backbone'].iloc[0]}, stem {curve['stem'].iloc[0]}", 40)
            label = f"{name} {plain(str(run)[-6:])}"
            axes.plot(at, points["similarity"], marker="o", markersize=4, label=label, **look(number))
        axes.set_xticks(range(len(places)), [plain(place, 24) for place in places], rotation=60, ha="right")
        axes.set_ylabel("cosine similarity of tokens")
        say_cut(figure, min(rows["run"].nunique(), LINES), rows["run"].nunique(), "runs")
        finish(figure, [axes])
        return Plot(to_svg(figure, "similarity"), rows.to_csv(index=False))


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


def similarity_by_epoch(runs: Sequence[Run], looks: Mapping[str, Sequence[Mapping[str, Any]]]) -> Plot:
    """Similarity of tokens at three places against the epoch, a curve for each training that was looked at.

    Args:
        looks: by run id the lines of its history that have `layers`.

    Columns of the CSV: run, backbone, epoch, place, kind, and what was measured there, as in the record of task
    `tokens`.
    """
    import pandas as pd

    names = {
        record.run_id: group.backbone for group in grouped([run.record for run in runs])[0] for record in group.records
    }
    ids = [run.record.run_id for run in runs if looks.get(run.record.run_id)]
    rows = pd.DataFrame(
        [
            {"run": run, "backbone": names[run], "epoch": entry["epoch"]} | layer
            for run in ids
            for entry in looks[run]
            for layer in entry["layers"]
        ]
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
        say_cut(figure, min(len(ids), LINES), len(ids), "runs")
        finish(figure, panels)
        return Plot(to_svg(figure, "similarity-by-epoch"), rows.to_csv(index=False))


def _last_of(kind: str, looks: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """By epoch the similarity at the last place of a kind, where it is defined."""
    found: dict[int, float] = {}
    for entry in looks:
        values = [layer["similarity"] for layer in entry["layers"] if layer["kind"] == kind]
        if values and values[-1] is not None:
            found[entry["epoch"]] = values[-1]
    return found
