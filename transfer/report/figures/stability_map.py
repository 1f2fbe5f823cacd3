"""Stability maps as heat maps: a panel for each map, a cell for each rate and warm-up, failures hatched."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from transfer.records.fields import order
from transfer.report.figures.svg import (
    SMALL,
    Mark,
    Plot,
    canvas,
    draw_legend,
    fits,
    for_both_widths,
    is_narrow,
    note_omitted,
    plain,
    plot_of,
    wrapped,
)
from transfer.report.tables.stability_map import BREAKDOWNS, StabilityMap
from transfer.report.tables.table import cell_text, is_missing
from transfer.report.tables.text import csv

ENDINGS = {
    "nonfinite": ("#d55e00", "xx", "not finite"),
    "diverged": ("#e69f00", "//", "diverged"),
    "collapsed": ("#cc79a7", "..", "collapsed"),
    "at_chance": ("#a6a6a6", "--", "at chance"),
    "score_at_chance": ("#d9d9d9", "||", "score at chance"),
    "not_judged": ("#ffffff", "", "not judged"),
}
"""Color, hatch and label of each outcome but `completed`, any two of which distinguish it."""
LOW, HIGH = (0.87, 0.92, 0.97), (0.03, 0.27, 0.52)
"""Colors of the lowest and the highest score: red, green and blue in [0, 1]."""
UNIT_X, UNIT_Y = 1.02, 0.52
"""Width and height of a cell in inches."""
PANELS = 24


Range = tuple[float, float]


def _shade(score: float, scores: Range) -> tuple[float, ...]:
    """Return the color of a score, linear between those of the lowest and the highest."""
    share = (score - scores[0]) / (scores[1] - scores[0]) if scores[1] > scores[0] else 0.5
    return tuple(low + share * (high - low) for low, high in zip(LOW, HIGH))


@for_both_widths
def heat_map(rows: StabilityMap) -> Plot:
    """Draw a stability map.

    A completed cell has the color and the text of its score in percent; any other cell has the color, hatch and label
    of its status, below its score if it has one. If only some seeds failed, a second line counts them. In a completed
    cell a band shows the most frequent failure, with the share of failed seeds as its height. Text that does not fit
    its cell is omitted, since the legend has the hatches. Cells that were not run stay empty.
    """
    all_groups = rows.panels()
    groups = all_groups[:PANELS]
    values = {axis: _ordered([_value(value) for value in rows[axis]]) for axis in (rows.x, rows.y)}
    across = max(min(len(groups), int(11 / (UNIT_X * len(values[rows.x]) + 1))), 1)
    width = across * (UNIT_X * max(len(values[rows.x]), 2) + 1.0)
    height = -(-len(groups) // across) * (UNIT_Y * len(values[rows.y]) + 0.85) + 0.4
    scales = _scales(rows)
    columns = 1 if is_narrow() else across
    with canvas(width, height, max(len(groups), 1), across) as (figure, axes):
        marks: list[Mark] = []
        panel_inches = figure.get_figwidth() / columns - 0.9
        for number, (axis, (title, panel)) in enumerate(zip(axes, groups)):
            marks += _panel(axis, number, panel.rows, values, scales, panel_inches / len(values[rows.x]))
            axis.set_title(wrapped(plain(title, 120), panel_inches, 10))
        _legend(figure, rows)
        note_omitted(figure, len(groups), len(all_groups), "maps")
        name = "map-" + re.sub("[^a-z0-9]+", "-", f"{rows.x}-{rows.y}".lower())
        return plot_of(figure, name, csv(rows), marks)


def _scales(rows: StabilityMap) -> dict[str, Range]:
    """Return the lowest and the highest score of each metric among the completed cells, for all panels."""
    scores: dict[str, list[float]] = {}
    for row in rows.rows:
        if row["outcome"] == "completed" and _value(row["score"]) is not None:
            scores.setdefault(row["metric"], []).append(row["score"])
    return {metric: (min(values), max(values)) for metric, values in scores.items()}


def _ordered(values: Sequence[Any]) -> list[Any]:
    """Return the distinct values: None first, then numbers by size, then texts."""
    return sorted(dict.fromkeys(values), key=lambda value: (value is not None, order(value)))


def _panel(
    axes: Any,
    number: int,
    cells: Sequence[dict[str, Any]],
    values: dict[str, list[Any]],
    scales: dict[Any, Range],
    inches: float,
) -> Iterator[Mark]:
    """Draw a panel whose cells have a width in inches; yield what is said of each cell."""
    x, y = values
    for cell in cells:
        column, row = values[x].index(_value(cell[x])), values[y].index(_value(cell[y]))
        gid = f"cell-{number}-{column}-{row}"
        _cell(axes, (column, row), gid, cell, scales, inches)
        score = _value(cell["score"])
        told = f"{x} {_label(cell[x])}, {y} {_label(cell[y])}: {cell_text(cell['statuses'])}"
        told += "" if score is None else f", {cell['metric']} {score:.2f}"
        runs = cell.get("run") or ()
        yield Mark(gid, told, runs[0] if runs else "")
    for name, put, limit in ((x, axes.set_xticks, axes.set_xlim), (y, axes.set_yticks, axes.set_ylim)):
        labels = [plain(_label(value), 14) for value in values[name]]
        level = name == y or all(fits(label, inches, 10) for label in labels)
        put(range(len(labels)), labels, rotation=0 if level else 90)
        limit(-0.5, len(values[name]) - 0.5)
    axes.set_xlabel(plain(x.replace("_", " ")))
    axes.set_ylabel(plain(y.replace("_", " ")))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_alpha(0.3)


def _value(value: Any) -> Any:
    """Return a value of a cell, None for nan."""
    return None if value is None or value != value else value


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def _commonest_breakdown(cell: dict[str, Any]) -> str | None:
    """Return the commonest breakdown among the seeds of a completed cell; None without any."""
    kinds = [kind for kind, _ in cell["statuses"].runs if kind in BREAKDOWNS]
    return kinds[0] if kinds and cell["outcome"] == "completed" else None


def _band(axes: Any, corner: tuple[float, float], share: float, gid: str, ending: str) -> None:
    """Draw a band at the bottom of a cell whose height is the share of failed seeds."""
    from matplotlib.patches import Rectangle

    back, hatch, _ = ENDINGS[ending]
    band = Rectangle(corner, 0.94, 0.92 * share, facecolor=back, edgecolor="#00000055", hatch=hatch, linewidth=0)
    band.set_gid(gid)
    axes.add_patch(band)


def _cell(
    axes: Any, place: tuple[int, int], gid: str, cell: dict[str, Any], scales: dict[Any, Range], inches: float
) -> None:
    """Draw a cell with its text, as far as it fits a width in inches."""
    from matplotlib.patches import Rectangle

    corner = (place[0] - 0.47, place[1] - 0.46)
    ending, broken, judged = cell["outcome"], cell["failed"].broken, cell["failed"].total
    score = _value(cell["score"])
    if ending == "completed":
        color = LOW if score is None else _shade(score, scales[cell["metric"]])
        patch = Rectangle(corner, 0.94, 0.92, facecolor=color, edgecolor="none")
        ink = "#ffffff" if sum(color) < 1.5 else "#0b2239"
        word = "completed" if score is None else f"{score:.1f}"
    else:
        back, hatch, word = ENDINGS[ending]
        word = word if score is None else f"{score:.1f}\n{word.removeprefix('score ')}"
        patch = Rectangle(corner, 0.94, 0.92, facecolor=back, edgecolor="#00000055", hatch=hatch, linewidth=0)
        ink = "#000000"
    patch.set_gid(gid)
    axes.add_patch(patch)
    breakdown = _commonest_breakdown(cell)
    if breakdown:
        _band(axes, corner, broken / judged, gid.replace("cell", "band"), breakdown)
    if 0 < broken < judged:
        word = f"{word.partition(chr(10))[0]}\n{broken}/{judged} failed"
    word = next((text for text in (word, word.partition("\n")[0]) if fits(text, inches)), "")
    shown = axes.text(*place, word, ha="center", va="center", color=ink, fontsize=SMALL)
    if (word and ending != "completed") or breakdown:
        shown.set_bbox({"facecolor": patch.get_facecolor(), "edgecolor": "none", "pad": 1.2})


def _legend(figure: Any, rows: StabilityMap) -> None:
    """Draw the legend of the statuses that the map shows."""
    from matplotlib.patches import Patch

    endings = {*rows["outcome"], *filter(None, map(_commonest_breakdown, rows.rows))}
    shown = {}
    if not all(map(is_missing, rows["score"])):
        levels = sorted({f"{level:.3g}" for level in rows["chance"] if not is_missing(level)})
        chance = f" (chance level {', '.join(levels)})" * bool(levels)
        shown[f"score in percent{chance}"] = Patch(facecolor=HIGH)
    for ending, (color, hatch, word) in ENDINGS.items():
        if ending in endings:
            shown[word] = Patch(facecolor=color, hatch=hatch, edgecolor="#00000055")
    draw_legend(figure, shown)
