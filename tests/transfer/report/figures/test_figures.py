"""Figures: what is drawn is what the tables have, in files for a page and for a paper."""

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from tests.runs import ended
from tests.transfer.report.page.pages import HOSTILE, make_run, stability_rows, write_history
from tests.transfer.report.tables.test_comparison import both, compared, made
from transfer.core.errors import UserError
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.figures import plots as drawing
from transfer.report.figures.svg import INK, OKABE_ITO, Plot, label_text, write_figures
from transfer.report.page.html import Section, page
from transfer.report.sections import ReportRequest, sections
from transfer.report.tables.costs import cost_table
from transfer.report.tables.pivot import names_of_runs
from transfer.report.tables.scores import layer_table
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
    looks = {}
    for panel, axes in enumerate(plot.figure.axes):
        for cell in (patch for patch in axes.patches if isinstance(patch, Rectangle)):
            place = f"{panel}-{round(cell.get_x() + 0.47)}-{round(cell.get_y() + 0.46)}"
            looks[place] = to_hex(cell.get_facecolor()), cell.get_hatch() or ""
    return looks


def cost_rows() -> Table:
    """Costs and scores of four backbones: two on the front, one behind it, one that costs nothing."""
    costs = {"params": 1e6, "device_hours": 1.0, "images_per_second": 10.0}
    rows = [("small", 0.2, 1.0), ("worse", 0.1, 1.5), ("large", 0.6, 2.0), ("free", 0.05, 0.0)]
    names, scores, gflops = zip(*rows)
    given = [{"backbone": {"name": name}, "scores": {"mAP": score}} for name, score in zip(names, scores)]
    runs = [make_run(n, **one, cost=costs | {"gflops": flops}) for n, (one, flops) in enumerate(zip(given, gflops))]
    return cost_table(StoredRuns.of(runs))


def all_plots(folder: Path, names: Sequence[str]) -> list[Plot]:
    """Every plot with these names wherever a name can stand."""
    write_history(folder, [3.0, 2.0])
    cells_of = [row | {"stem": name} for name in names for row in stability_rows().rows[:3]]
    table = replace(stability_rows(), rows=cells_of)
    runs = [make_run(0, folder, backbone={"name": name}, run_id=name) for name in names]
    for run in runs:
        name = run.record.run_id
        run.record.details["layers"] = [{"place": name, "kind": "block", "similarity": 0.5}]
    cells = [row | {"dataset": name, "metric": name, "run": (name,)} for name in names for row in cost_rows().rows]
    costs = replace(cost_rows(), rows=cells)
    shown, variants = StoredRuns.of(runs), {name: name for name in names}
    plots = [drawing.heat_map(table), drawing.similarity_plot(layer_table(shown), variants)]
    return [*plots, drawing.training_curves(shown, variants), drawing.cost_plot(costs, variants)]


def named_plot(costs: Table) -> Plot | None:
    return drawing.cost_plot(costs, {row["run"][0]: row["backbone"] for row in costs.rows})


def test_the_cost_plot_shows_what_can_be_placed_and_rings_the_front() -> None:
    plot = named_plot(cost_rows())
    assert rows(plot)["backbone"].tolist() == ["small", "worse", "large"], "no logarithm of nothing"
    assert rows(plot)["pareto_gflops"].tolist() == [True, False, True]
    assert {"small", "large", "Pareto front", "mAP", "GFLOP per image (forward pass)"} <= {*words(plot)}
    alone = make_run(1, scores={"mAP": 0.05}, cost={"gflops": 2.0})
    assert named_plot(cost_table(StoredRuns.of([alone]))) is None, "one point shows nothing"


@pytest.mark.parametrize(("last", "drawn"), [(1.04, False), (1.06, True)])
def test_no_point_hides_another_and_nearly_equal_costs_are_not_drawn(last: float, drawn: bool) -> None:
    rows = [row | {"gflops": gflops} for row, gflops in zip(cost_rows().rows, (1.0, 1.0, last))]
    plot = named_plot(replace(cost_rows(), rows=rows))
    assert (plot is not None) == drawn
    points = [] if plot is None else plot.figure.axes[0].collections
    assert not any(len(one.get_facecolor()) for one in points if isinstance(one, PathCollection))


def test_histories_are_thinned_and_end_where_the_numbers_do(tmp_path: Path) -> None:
    write_history(tmp_path / "short", [5.0, 50.0, 5e6, None])
    write_history(tmp_path / "long", [1.0 + step for step in range(5000)])
    runs = [make_run(seed, tmp_path / name) for seed, name in enumerate(("none", "long"))]
    known = StoredRuns.of([*runs, make_run(2, tmp_path / "short", outcome=ended("nonfinite", 3))])
    table = rows(drawing.training_curves(known, names_of_runs(known)))
    assert table.groupby("status")["loss"].last().to_dict() == {"completed": 5000.0, "nonfinite": 5e6}
    long = table[table["status"] == "completed"]
    assert len(long) == drawing.CURVE_POINTS
    assert (long["step"].iloc[0], long["step"].iloc[-1]) == (1, 5000)
    assert (long["loss"] == long["step"]).all()


def test_similarity_of_every_place_and_configuration() -> None:
    layers = [
        {"place": place, "kind": "block", "similarity": value} for place, value in (("stem", 0.2), ("block 1", 0.9))
    ]
    runs = StoredRuns.of(make_run(seed, task="tokens", details={"layers": layers}) for seed in range(2))
    plot = drawing.similarity_plot(layer_table(runs), names_of_runs(runs))
    assert rows(plot)["similarity"].tolist() == [0.2, 0.9]
    assert {"stem", "block 1"} <= {*words(plot)}


def drawn(runs: list[StoredRun]) -> tuple[str, list[dict[str, Any]]]:
    """The drawing of conv against patchify, and the rows that it shows."""
    known = StoredRuns.of(runs)
    plot = drawing.forest_plot(compared(runs, "stem=conv", "stem=patchify"), known, names_of_runs(known))
    return ("", []) if plot is None else (plot.svg, rows(plot).to_dict("records"))


def test_rows_intervals_and_sides(tmp_path: Path) -> None:
    runs = both(tmp_path)
    svg, (shown,) = drawn(runs)
    for text in ("knn top1 on toy_market", "← patchify better", "→ conv better", "percentage points", OKABE_ITO[0]):
        assert text in svg
    assert "top5" not in svg
    (row,) = [row for row in compared(runs, "stem=conv", "stem=patchify").rows if row.primary]
    assert (shown["task"], shown["score"], shown["verdict"]) == ("knn", "top1", "a better (random weights)")
    assert [shown[name] for name in ("difference", "low", "high")] == pytest.approx(
        [100 * value for value in (row.estimate.estimate, row.estimate.low, row.estimate.high)]
    )


def test_scores_that_the_headline_does_not_count_are_marked(tmp_path: Path) -> None:
    svg, _ = drawn([made(tmp_path, stem, task=of) for stem in ("conv", "patchify") for of in ("knn", "pretrain-dino")])
    assert re.findall(r">([^<>]*), not counted<", svg) == ["pretrain-dino top1 on toy_market"]


def test_what_is_not_decided_is_hollow_and_breakdowns_are_named(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv", seed=seed, level=0.5) for seed in range(2)]
    runs += [made(tmp_path, "patchify", seed=seed, level=0.51) for seed in (5, 6)]
    svg, _ = drawn([*runs, made(tmp_path, "patchify", seed=7, broke=True)])
    assert drawing.UNDECIDED in svg
    assert OKABE_ITO[0] not in svg
    assert "✗ patchify failed in 1 of 3" in svg
    assert drawn([runs[0], made(tmp_path, "patchify", broke=True)]) == ("", []), "nothing to draw"


def test_a_score_of_which_less_is_better_lies_on_the_side_of_the_better_arm(tmp_path: Path) -> None:
    metrics = {"top1": {"direction": "lower", "bounds": [0, 1]}}
    svg, (shown,) = drawn(both(tmp_path, seeds=2, metrics=metrics))
    assert OKABE_ITO[1] in svg, "the second variant is better"
    assert shown["difference"] > 0, "the CSV keeps the table's sign"
    assert shown["verdict"] == "b better (random weights)"


NAME = "conv-vs-patchify"


def test_svg_pdf_and_data_of_every_figure(tmp_path: Path) -> None:
    runs = StoredRuns.of(both(tmp_path / "runs"))
    request = ReportRequest(everything=True)
    folder = tmp_path / "figures"
    files = write_figures(lambda: [(one.file_name, one.plot) for one in sections(runs, request) if one.plot], folder)
    assert {file.name for file in files} == {path.name for path in (tmp_path / "figures").iterdir()}
    assert {f"{NAME}-1col.svg", f"{NAME}-2col.pdf", f"{NAME}.csv"} <= {file.name for file in files}
    svg = (tmp_path / "figures" / f"{NAME}-2col.svg").read_text()
    assert "knn top1 on toy_market" in svg, "text stays text"
    assert "currentColor" not in svg, "a paper has no text color to inherit"
    assert 'width="496.8pt"' in svg, "6.9 inches"
    narrow = (tmp_path / "figures" / f"{NAME}-1col.svg").read_text()
    assert 'width="241.2pt"' in narrow, "3.35 inches"
    assert min(map(float, re.findall(r"font-size: ([\d.]+)px", narrow))) >= 6.0
    pdf = (tmp_path / "figures" / f"{NAME}-1col.pdf").read_bytes()
    assert b"/FontFile2" in pdf, "letters as a font, not as outlines"
    with pytest.raises(UserError, match="report figures: these runs give no figure"):
        write_figures(list, tmp_path)


def test_every_cell_of_a_map_is_where_its_axes_say_on_one_scale_and_mixed_ones_say_so() -> None:
    plot = drawing.heat_map(stability_rows())
    found = cells(plot)
    assert set(found) == {f"{panel}-{column}-{row}" for panel in (0, 1) for column in range(3) for row in range(2)}
    text = words(plot)
    assert {"stem patchify", "stem conv", "lr", "warmup epochs", "0.0001", "0.001", "0.01", "0", "5"} <= {*text}
    for ending in ("diverged", "nonfinite", "at_chance", "collapsed", "score_at_chance"):
        assert drawing.ENDINGS[ending][2] in text
    assert "score in percent (chance level 10)" in text
    # patchify: rates go right, warm-ups go up
    places = ("1-0-1", "1-1-0", "1-1-1", "1-2-0", "1-2-1")
    fills = dict(zip(places, ("diverged", "nonfinite", "score_at_chance", "at_chance", "collapsed")))
    assert {place: found[place] for place in places} == {place: drawing.ENDINGS[fills[place]][:2] for place in places}
    assert all(not hatch for place, (_, hatch) in found.items() if place not in fills)
    assert found["0-0-0"] == found["1-0-0"], "equal scores, equal colors"
    assert len({found[f"0-{column}-{row}"] for column in range(3) for row in range(2)}) == 6
    assert text.count("1/3 failed") == 1
    assert text.count("70.0") == 1


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> list[Plot]:
    """Every plot of an ordinary name."""
    return all_plots(tmp_path_factory.mktemp("plots"), ["name"])


def test_hostile_names_are_texts_and_no_formulas(tmp_path: Path) -> None:
    for plot in all_plots(tmp_path, HOSTILE):
        tree = ElementTree.fromstring(plot.svg)
        tags = {item.tag.removeprefix(SVG) for item in tree.iter()}
        assert tags <= {"svg", "g", "path", "text", "title", "tspan", "defs", "clipPath", "rect", "use", "pattern"}
        assert not [key for item in tree.iter() for key in item.attrib if key.lower().startswith("on")]
        shown = " ".join(words(plot))
        for name in HOSTILE:
            assert label_text(name)[:8].strip() in shown, name
        assert len(rows(plot)) >= len(HOSTILE)


def test_labels_are_one_short_line() -> None:
    assert label_text("a\n\tb\x00c") == "a b\\x00c"
    assert label_text("x" * 100, 10) == "x" * 9 + "…"


def test_equal_rows_give_equal_bytes_whatever_the_users_style(plots: list[Plot], tmp_path: Path) -> None:
    with matplotlib.rc_context({"text.color": "red", "font.size": 40, "axes.grid": True, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert all_plots(tmp_path, ["name"]) == plots
        assert dict(matplotlib.rcParams) == before


def test_drawings_take_the_pages_color_and_set_no_rules_for_it(plots: list[Plot]) -> None:
    for plot in plots:
        assert plot.svg.startswith("<svg")
        assert "currentColor" in plot.svg
        assert not [word for word in (INK, "<style", "<metadata") if word in plot.svg]
    text = page("t", [Section(title="s", plot=plot) for plot in plots], StoredRuns.of([])).partition("<main")[2]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len({*ids}), "no id stands in two drawings"
    assert {*re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text)} <= {*ids}
