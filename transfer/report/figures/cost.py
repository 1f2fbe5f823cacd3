"""Scores against what they cost: a panel for each task and data set, with its Pareto front and a fit."""

import re
from typing import TYPE_CHECKING, Any

from transfer.report.figures.svg import COLOURS, INK, Plot, canvas, finish, logarithmic, plain, say_cut, to_svg

if TYPE_CHECKING:
    import pandas as pd

PANEL = ("task", "dataset", "metric")
SHAPES = "osD^vPX*"
PANELS = 12
UNITS = {"gflops": "GFLOPs of an image", "params_million": "parameters in millions", "ms_per_image": "ms per image"}


def cost_plot(rows: "pd.DataFrame", cost: str = "total_hours") -> Plot:
    """Draws a cost table: score against cost on a logarithmic axis, the points of the Pareto front ringed and joined.

    A fit (see `transfer.report.tables.costs.cost_fits`) stands with its 95 % interval where there are points enough.
    The CSV has the rows that are drawn: those with a positive cost and a score.

    Args:
        rows: of `transfer.report.tables.costs.cost_table`.
        cost: one of `transfer.report.tables.costs.COSTS`.
    """
    from transfer.report.tables.costs import KIND_OF, cost_fits

    hours = [KIND_OF[cost]] if cost in KIND_OF else []
    series = list(rows.attrs.get("by", [])) or ["backbone"]
    kept = rows[(rows[cost] > 0) & rows["score"].notna()].sort_values([cost, "score"], kind="stable")
    found = list(kept.groupby([*PANEL, *hours], sort=False, dropna=False))
    panels = found[:PANELS]
    fits = cost_fits(rows, cost)
    labels = {key: number for number, key in enumerate(dict.fromkeys(_names(kept, series)))}
    across = min(max(len(panels), 1), 2)
    with canvas(4.6 * across + 2.4, 3.9 * -(-max(len(panels), 1) // across), max(len(panels), 1), across) as made:
        figure, every = made
        for axes, (key, points) in zip(every, panels):
            _panel(axes, points, cost, series, labels)
            mine = {fit_key[len(key) :]: fit for fit_key, fit in fits.items() if fit_key[: len(key)] == key}
            for of_series, fit in mine.items():
                name = plain(" ".join(map(str, of_series)), 40)
                colour = COLOURS[labels[name] % len(COLOURS)] if of_series else INK
                axes.plot(fit.curve["cost"], fit.curve["score"], color=colour, linewidth=1.3)
                axes.fill_between(fit.curve["cost"], fit.curve["low"], fit.curve["high"], color=colour, alpha=0.13)
            axes.set_title(plain(" · ".join(map(str, key[:2]))))
            axes.set_xlabel(UNITS.get(cost) or f"{key[-1]} hours ({cost.removesuffix('_hours')})")
            axes.set_ylabel(plain(key[2]))
            logarithmic(axes.xaxis, points[cost])
        finish(figure, every)
        say_cut(figure, len(panels), len(found), "panels")
        return Plot(to_svg(figure, f"cost-{re.sub('[^a-z0-9]+', '-', cost.lower())}"), kept.to_csv(index=False))


def _names(rows: "pd.DataFrame", series: list[str]) -> list[str]:
    """The name of each row's series."""
    return [plain(" ".join(map(str, values)), 40) for values in zip(*(rows[name] for name in series))]


def _panel(axes: Any, points: "pd.DataFrame", cost: str, series: list[str], labels: dict[str, int]) -> None:
    names = _names(points, series)
    for label in dict.fromkeys(names):
        number, mine = labels[label], points[[name == label for name in names]]
        shape = SHAPES[number // len(COLOURS) % len(SHAPES)]
        colour = COLOURS[number % len(COLOURS)]
        axes.errorbar(mine[cost], mine["score"], yerr=mine["score_sd"].fillna(0), fmt="none", ecolor=colour, alpha=0.6)
        axes.scatter(mine[cost], mine["score"], s=42, color=colour, marker=shape, label=label, zorder=3)
    best = points[points[f"pareto_{cost}"].astype(bool)]
    for _, front in best.groupby("protocol", sort=False, dropna=False):
        axes.plot(front[cost], front["score"], color=INK, linewidth=1.1, drawstyle="steps-post")
    axes.scatter(best[cost], best["score"], s=110, facecolors="none", edgecolors=INK, zorder=4, label="Pareto front")
