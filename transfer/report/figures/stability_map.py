"""A stability map drawn: a panel for each group, a cell for each rate and warm-up, breakdowns hatched and named."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transfer.report.figures.svg import INK, Plot, canvas, note_omitted, plain, to_svg
from transfer.report.tables.cell_text import cell_text
from transfer.report.tables.render import csv
from transfer.report.tables.stability_map import StabilityMap
from transfer.report.tables.table import Row

ENDINGS = {
    "nonfinite": ("#d55e00", "xx", "not finite"),
    "diverged": ("#e69f00", "//", "diverged"),
    "collapsed": ("#cc79a7", "..", "collapsed"),
    "at_chance": ("#a6a6a6", "--", "at chance"),
}
"""Colour, hatch and word of each way of breaking down: two of the three are enough to tell them apart."""
LOW, HIGH = (0.87, 0.92, 0.97), (0.03, 0.27, 0.52)
"""Colours of the lowest and the highest score, red, green and blue in [0, 1]."""
UNIT_X, UNIT_Y = 1.02, 0.52
"""Inches of a cell."""
PANELS = 24


@dataclass(frozen=True)
class _Scale:
    """From scores to colours, the same for all panels of one metric."""

    low: float
    high: float

    def colour(self, score: float) -> tuple[float, ...]:
        share = (score - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return tuple(low + share * (high - low) for low, high in zip(LOW, HIGH))


def heat_map(rows: StabilityMap) -> Plot:
    """Draws a map.

    A cell that completed has the colour of its score and says it, in percent; one that broke down has the colour and
    the hatch of its ending and says its word. Where seeds ended unlike each other, a second line counts those that
    broke down, and of a cell that most completed a band as high as their share has the look of the commonest breakdown
    among them. Cells that were not run stay empty.
    """
    every = _groups(rows)
    groups = every[:PANELS]
    values = {axis: _ordered([_value(value) for value in rows[axis]]) for axis in (rows.x, rows.y)}
    across = max(min(len(groups), int(11 / (UNIT_X * len(values[rows.x]) + 1))), 1)
    width = across * (UNIT_X * max(len(values[rows.x]), 2) + 1.0)
    height = -(-len(groups) // across) * (UNIT_Y * len(values[rows.y]) + 0.85) + 0.4
    scales = _scales(rows)
    with canvas(width, height, max(len(groups), 1), across) as (figure, axes):
        for number, (axis, (title, cells)) in enumerate(zip(axes, groups)):
            _panel(axis, number, cells, (rows.x, rows.y), values, scales)
            axis.set_title(plain(title, int(width / across * 11)))
        partly = (_partly(cell) for _, cells in groups for cell in cells)
        _legend(figure, {*rows["outcome"], *filter(None, partly)})
        note_omitted(figure, len(groups), len(every), "maps")
        name = "map-" + re.sub("[^a-z0-9]+", "-", f"{rows.x}-{rows.y}".lower())
        return Plot(to_svg(figure, name), csv(rows))


def _scales(rows: StabilityMap) -> dict[str, _Scale]:
    """The scale of each metric, over the cells that completed."""
    scores: dict[str, list[float]] = {}
    for row in rows.rows:
        if row["outcome"] == "completed" and _value(row["score"]) is not None:
            scores.setdefault(row["metric"], []).append(row["score"])
    return {metric: _Scale(min(values), max(values)) for metric, values in scores.items()}


def _groups(rows: StabilityMap) -> list[tuple[str, list[Row]]]:
    """The cells of each panel under its title: what tells it from the others, or what it is if there is no other."""
    telling = [name for name in rows.panel if len({*map(cell_text, rows[name])}) > 1]
    panels: dict[tuple[str, ...], list[Row]] = {}
    for row in rows.rows:
        panels.setdefault(tuple(cell_text(row[name]) for name in telling), []).append(row)
    if not telling:
        titles = [str(rows[name][0]) for name in ("task", "dataset", "backbone")] if len(rows) else []
        return [(" · ".join(titles), cells) for cells in panels.values()]
    speaking = {"task", "dataset", "backbone", "pretraining"}  # columns whose values say what they are
    return [
        (" · ".join(value if name in speaking else f"{name} {value}" for name, value in zip(telling, key)), cells)
        for key, cells in panels.items()
    ]


def _ordered(values: Sequence[Any]) -> list[Any]:
    """The distinct values: numbers by size, then texts, None first."""

    def key(value: Any) -> tuple[int, float, str]:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return (0 if value is None else 1 if number else 2, float(value) if number else 0.0, str(value))

    return sorted(dict.fromkeys(values), key=key)


def _panel(
    axes: Any,
    number: int,
    cells: Sequence[dict[str, Any]],
    names: tuple[str, str],
    values: dict[str, list[Any]],
    scales: dict[Any, _Scale],
) -> None:
    x, y = names
    for cell in cells:
        column, row = values[x].index(_value(cell[x])), values[y].index(_value(cell[y]))
        _cell(axes, (column, row), f"cell-{number}-{column}-{row}", cell, scales)
    for name, put, limit in ((x, axes.set_xticks, axes.set_xlim), (y, axes.set_yticks, axes.set_ylim)):
        put(range(len(values[name])), [plain(_label(value), 14) for value in values[name]])
        limit(-0.5, len(values[name]) - 0.5)
    axes.set_xlabel(plain(x.replace("_", " ")))
    axes.set_ylabel(plain(y.replace("_", " ")))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_alpha(0.3)


def _value(value: Any) -> Any:
    """A table's value, None for its ways of saying that there is none."""
    return None if value is None or value != value else value


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def _partly(cell: dict[str, Any]) -> str | None:
    """The commonest way of breaking down of some seeds of a cell that most completed."""
    kinds = [kind for kind in ENDINGS if cell.get(kind)]
    return max(kinds, key=lambda kind: cell[kind]) if kinds and cell["outcome"] == "completed" else None


def _band(axes: Any, corner: tuple[float, float], share: float, gid: str, ending: str) -> None:
    """At the foot of a cell, as high as the share of the seeds that broke down."""
    from matplotlib.patches import Rectangle

    back, hatch, _ = ENDINGS[ending]
    band = Rectangle(corner, 0.94, 0.92 * share, facecolor=back, edgecolor="#00000055", hatch=hatch, linewidth=0)
    band.set_gid(gid)
    axes.add_patch(band)


def _cell(axes: Any, place: tuple[int, int], gid: str, cell: dict[str, Any], scales: dict[Any, _Scale]) -> None:
    """One cell with its words."""
    from matplotlib.patches import Rectangle

    corner = (place[0] - 0.47, place[1] - 0.46)
    ending, seeds = cell["outcome"], int(cell["seeds"])
    broken = seeds - int(cell["completed"])
    score = _value(cell["score"])
    if ending == "completed":
        colour = LOW if score is None else scales[cell["metric"]].colour(score)
        patch = Rectangle(corner, 0.94, 0.92, facecolor=colour, edgecolor="none")
        ink = "#ffffff" if sum(colour) < 1.5 else "#0b2239"
        word = "completed" if score is None else f"{score:.1f}"
    else:
        back, hatch, word = ENDINGS.get(ending, ("#a6a6a6", "++", ending))
        patch = Rectangle(corner, 0.94, 0.92, facecolor=back, edgecolor="#00000055", hatch=hatch, linewidth=0)
        ink = "#000000"
    patch.set_gid(gid)
    axes.add_patch(patch)
    partly = _partly(cell)
    if partly:
        _band(axes, corner, broken / seeds, gid.replace("cell", "band"), partly)
    mixed = f"\n{broken} of {seeds} broke" if 0 < broken < seeds else ""
    shown = axes.text(*place, plain(word, 14) + mixed, ha="center", va="center", color=ink, fontsize=8.5)
    if ending != "completed" or partly:
        shown.set_bbox({"facecolor": patch.get_facecolor(), "edgecolor": "none", "pad": 1.2})


def _legend(figure: Any, endings: set[str]) -> None:
    """The kinds of breakdown that the map shows."""
    from matplotlib.patches import Patch

    shown = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#00000055", label=word)
        for ending, (colour, hatch, word) in ENDINGS.items()
        if ending in endings
    ]
    if "completed" in endings:
        shown.insert(0, Patch(facecolor=HIGH, label="score in percent"))
    if shown:
        columns = max(int(figure.get_figwidth() / 1.6), 1)
        figure.legend(handles=shown, loc="outside lower left", ncols=columns, fontsize=8.5, labelcolor=INK)
