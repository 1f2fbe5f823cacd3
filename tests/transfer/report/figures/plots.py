"""What tests read of drawings, and records to draw."""

import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tests.transfer.report.page.pages import make_run, stability_rows
from tests.transfer.report.tables.of_records import cost_table_of
from transfer.records.run_set import RunSet
from transfer.report.figures.scores import cost_plot
from transfer.report.figures.svg import Plot
from transfer.report.figures.training import heat_map, similarity_plot, training_curves
from transfer.report.tables.table import Table

SVG = "{http://www.w3.org/2000/svg}"


def words(plot: Plot) -> list[str]:
    """The texts of a drawing, line by line."""
    return ["".join(item.itertext()) for item in ElementTree.fromstring(plot.svg).iter(f"{SVG}text")]


def rows(plot: Plot) -> pd.DataFrame:
    """What a drawing stands for, read from its CSV."""
    return pd.read_csv(io.StringIO(plot.csv))


def cells(plot: Plot) -> dict[str, tuple[str, str]]:
    """Color and hatch of every cell of a map by its panel, column and row."""
    return {
        f"{panel}-{round(cell.get_x() + 0.47)}-{round(cell.get_y() + 0.46)}": (
            to_hex(cell.get_facecolor()),
            cell.get_hatch() or "",
        )
        for panel, axes in enumerate(plot.figure.axes)
        for cell in axes.patches
        if isinstance(cell, Rectangle)
    }


def cost_rows() -> Table:
    """Costs and scores of four backbones: two on the front, one behind it, one that costs nothing."""
    costs = {"params": 1e6, "device_hours": 1.0, "images_per_second": 10.0}
    rows = [("small", 0.2, 1.0), ("worse", 0.1, 1.5), ("large", 0.6, 2.0), ("free", 0.05, 0.0)]
    names, scores, gflops = zip(*rows)
    given = [{"backbone": {"name": name}, "scores": {"mAP": score}} for name, score in zip(names, scores)]
    runs = [make_run(n, **one, cost=costs | {"gflops": flops}) for n, (one, flops) in enumerate(zip(given, gflops))]
    return cost_table_of([run.record for run in runs])


def all_plots(folder: Path, names: Sequence[str]) -> list[Plot]:
    """Every plot with these names wherever a name can stand."""
    cells_of = [row | {"stem": name} for name in names for row in stability_rows().rows[:3]]
    table = replace(stability_rows(), rows=cells_of)
    runs = [make_run(0, folder, backbone={"name": name}, run_id=name) for name in names]
    for run in runs:
        name = run.record.run_id
        run.record.details["layers"] = [{"place": name, "kind": "block", "similarity": 0.5}]
    cells = [row | {"dataset": name, "metric": name, "run": (name,)} for name in names for row in cost_rows().rows]
    costs = replace(cost_rows(), rows=cells)
    shown, variants = RunSet.of(runs), {name: name for name in names}
    plots = [heat_map(table), similarity_plot(shown, variants), training_curves(shown, variants)]
    return [*plots, cost_plot(costs, variants)]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of a drawing whose boxes overlap by more than a pixel, and texts that leave it, with ""."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
            hidden |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts if text not in hidden]
    page = figure.bbox.padded(1)
    found = [(name, "") for name, box in boxes if not (page.contains(*box.min) and page.contains(*box.max))]
    for (one, first), (two, second) in combinations(boxes, 2):
        part = Bbox.intersection(first, second)
        if part is not None and min(part.width, part.height) > 1:
            found.append((one, two))
    return found
