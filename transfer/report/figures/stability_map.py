"""Stability maps as heat maps: a panel for each map, a cell for each rate and warm-up, failures hatched."""

from collections.abc import Mapping, Sequence
from typing import Any

from transfer.records.fields import order, value_label
from transfer.report.figures.svg import (
    SMALL,
    Plot,
    canvas,
    draw_legend,
    fits,
    is_narrow,
    mark,
    plain,
    plot_of,
    wrapped,
)
from transfer.report.tables.stability_map import StabilityMap
from transfer.report.tables.table import Row, cell_text, is_missing
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


def heat_map(rows: StabilityMap) -> Plot:
    """Draw a stability map.

    A completed cell has the color and the text of its score in percent; any other cell has the color, hatch and label
    of its status, below its score if it has one. If only some seeds failed, a second line counts them. Text that does
    not fit its cell is omitted, since the legend has the hatches. Cells that were not run stay empty.
    """
    panels = rows.panels()
    distinct = {axis: {*map(_value, rows[axis])} for axis in (rows.x, rows.y)}
    values = {axis: sorted(of, key=lambda value: (value is not None, order(value))) for axis, of in distinct.items()}
    across = max(min(len(panels), int(11 / (UNIT_X * len(values[rows.x]) + 1))), 1)
    width = across * (UNIT_X * max(len(values[rows.x]), 2) + 1.0)
    height = -(-len(panels) // across) * (UNIT_Y * len(values[rows.y]) + 0.85) + 0.4
    scores: dict[str, list[float]] = {}
    for row in rows.rows:
        if row["outcome"] == "completed" and not is_missing(row["score"]):
            scores.setdefault(row["metric"], []).append(row["score"])
    with canvas(width, height, max(len(panels), 1), across) as (figure, all_axes):
        inches = figure.get_figwidth() / (1 if is_narrow() else across) - 0.9
        for axes, (title, panel) in zip(all_axes, panels):
            _panel(axes, panel.rows, values, scores, inches / len(values[rows.x]))
            axes.set_title(wrapped(plain(title, 120), inches, 10))
        _legend(figure, rows)
        return plot_of(figure, csv(rows))


def _value(value: Any) -> Any:
    """Return a value of a cell, None for nan."""
    return None if is_missing(value) else value


def _panel(
    axes: Any, cells: Sequence[Row], values: Mapping[str, list[Any]], scores: Mapping[str, list[float]], inches: float
) -> None:
    """Draw a panel.

    Args:
        values: those of both axes, in order, by the axes' names.
        scores: those of the completed cells of all panels, by metric.
        inches: width of a cell.
    """
    x, y = values
    for cell in cells:
        place = values[x].index(_value(cell[x])), values[y].index(_value(cell[y]))
        _cell(axes, place, cell, f"{x} {value_label(cell[x])}, {y} {value_label(cell[y])}", scores, inches)
    for name, put, limit in ((x, axes.set_xticks, axes.set_xlim), (y, axes.set_yticks, axes.set_ylim)):
        labels = [plain(value_label(value), 14) for value in values[name]]
        level = name == y or all(fits(label, inches, 10) for label in labels)
        put(range(len(labels)), labels, rotation=0 if level else 90)
        limit(-0.5, len(labels) - 0.5)
    axes.set_xlabel(plain(x.replace("_", " ")))
    axes.set_ylabel(plain(y.replace("_", " ")))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_alpha(0.3)


def _cell(
    axes: Any, place: tuple[int, int], cell: Row, name: str, scores: Mapping[str, list[float]], inches: float
) -> None:
    """Draw a cell with its text, as far as it fits a width in inches."""
    from matplotlib.patches import Rectangle

    score, failed, runs = _value(cell["score"]), cell["failed"], cell.get("run") or ("",)
    completed = cell["outcome"] == "completed"
    look: tuple[Any, str, str] = (LOW, "", "completed") if completed else ENDINGS[cell["outcome"]]
    back, hatch, word = look
    if score is not None:
        word = f"{score:.1f}" if completed else f"{score:.1f}\n{word.removeprefix('score ')}"
        back = _shade(score, scores[cell["metric"]]) if completed else back
    if 0 < failed.broken < failed.of:
        word = f"{word.partition(chr(10))[0]}\n{failed.broken}/{failed.of} failed"
    word = next((text for text in (word, word.partition("\n")[0]) if fits(text, inches)), "")
    told = f"{name}: {cell_text(cell['statuses'])}"
    told += "" if score is None else f", {cell['metric']} {score:.2f}"
    corner = (place[0] - 0.47, place[1] - 0.46)
    patch = Rectangle(corner, 0.94, 0.92, facecolor=back, edgecolor="#00000055", hatch=hatch, linewidth=0)
    patch.set_gid(mark(told, runs[0]))
    axes.add_patch(patch)
    ink = "#ffffff" if completed and sum(back) < 1.5 else "#0b2239"
    shown = axes.text(*place, word, ha="center", va="center", color=ink, fontsize=SMALL)
    if word and not completed:
        shown.set_bbox({"facecolor": back, "edgecolor": "none", "pad": 1.2})


def _shade(score: float, scores: Sequence[float]) -> tuple[float, ...]:
    """Return the color of a score, linear between those of the lowest and the highest of `scores`."""
    low, high = min(scores), max(scores)
    share = (score - low) / (high - low) if high > low else 0.5
    return tuple(start + share * (end - start) for start, end in zip(LOW, HIGH))


def _legend(figure: Any, rows: StabilityMap) -> None:
    """Draw the legend of the statuses that the map shows."""
    from matplotlib.patches import Patch

    shown = {}
    if not all(map(is_missing, rows["score"])):
        levels = sorted({f"{level:.3g}" for level in rows["chance"] if not is_missing(level)})
        chance = f" (chance level {', '.join(levels)})" * bool(levels)
        shown[f"score in percent{chance}"] = Patch(facecolor=HIGH)
    for ending, (color, hatch, word) in ENDINGS.items():
        if ending in rows["outcome"]:
            shown[word] = Patch(facecolor=color, hatch=hatch, edgecolor="#00000055")
    draw_legend(figure, shown)
