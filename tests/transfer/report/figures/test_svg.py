import io
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import pandas as pd

from tests.transfer.records.recorded import broken, made
from tests.transfer.report.page.pages import HOSTILE, make_run, stability_rows, write_history
from tests.transfer.report.tables.of_records import cost_table_of, map_of
from transfer.records.run_set import RunSet
from transfer.report.figures.cost import cost_plot
from transfer.report.figures.stability_map import ENDINGS, heat_map
from transfer.report.figures.svg import INK, LINES, Plot, plain
from transfer.report.figures.tokens import merged_order, similarity_plot
from transfer.report.figures.training_curves import histories
from transfer.report.tables.costs import CostTable

SVG = "{http://www.w3.org/2000/svg}"
BROKEN = {"status": "nonfinite", "reason": "", "step": 3}


def words(plot: Plot) -> list[str]:
    """The texts of a drawing, line by line."""
    return ["".join(item.itertext()) for item in ElementTree.fromstring(plot.svg).iter(f"{SVG}text")]


def rows(plot: Plot) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(plot.csv))


def cells(plot: Plot) -> dict[str, str]:
    """Fill of every cell of a map by its id: panel, column, row."""
    tree, found = ElementTree.fromstring(plot.svg), {}
    for group in tree.iter(f"{SVG}g"):
        place = re.search(r"cell-(\d+-\d+-\d+)$", group.get("id", ""))
        if place:
            path = next(group.iter(f"{SVG}path"))
            found[place[1]] = (path.get("style") or "") + (path.get("fill") or "")
    return found


def token_runs() -> RunSet:
    layers = [
        {"place": place, "kind": "block", "similarity": value} for place, value in (("stem", 0.2), ("block 1", 0.9))
    ]
    return RunSet.of(make_run(seed, task="tokens", details={"layers": layers}) for seed in range(2))


def history_runs(folder: Path) -> RunSet:
    write_history(folder / "a", [5.0, 4.0, 3.0])
    write_history(folder / "b", [5.0, 50.0, 5e6, None, float("nan")])
    return RunSet.of([make_run(0, folder / "a"), make_run(1, folder / "b", outcome=BROKEN)])


def cost_rows() -> CostTable:
    return cost_table_of(
        [
            make_run(
                number,
                backbone={"name": name},
                scores={"mAP": score},
                cost={"gflops": cost, "params": 1e6, "device_hours": 1.0, "images_per_second": 10.0},
            ).record
            for number, (name, score, cost) in enumerate(
                [("small", 0.2, 1.0), ("worse", 0.1, 1.5), ("large", 0.6, 2.0), ("free", 0.05, 0.0)]
            )
        ]
    )


def test_every_cell_of_a_map_is_where_its_axes_say() -> None:
    plot = heat_map(stability_rows())
    found = cells(plot)
    assert set(found) == {f"{panel}-{column}-{row}" for panel in (0, 1) for column in range(3) for row in range(2)}
    text = words(plot)
    assert {"stem patchify", "stem conv", "lr", "warmup epochs", "0.0001", "0.001", "0.01", "0", "5"} <= {*text}
    for ending in ("diverged", "nonfinite", "at_chance", "collapsed"):
        assert ENDINGS[ending][2] in text
    # patchify: rates go right, warm-ups go up
    fills = {"0-0-1": "diverged", "0-1-0": "nonfinite", "0-2-0": "at_chance", "0-2-1": "collapsed"}
    for place, ending in fills.items():
        hatched = found[place]
        assert "url(#" in hatched, "broken-down cells are hatched"
        assert ENDINGS[ending][0] in plot.svg
        assert hatched not in [found[other] for other, kind in fills.items() if kind != ending]
    assert all("url(#" not in fill for place, fill in found.items() if place not in fills)


def test_scores_have_one_scale_over_all_panels_and_mixed_cells_say_so() -> None:
    plot = heat_map(stability_rows())
    found, text = cells(plot), words(plot)
    assert found["0-0-0"] == found["1-0-0"], "equal scores, equal colours"
    assert len({found[f"1-{column}-{row}"] for column in range(3) for row in range(2)}) == 6
    assert text.count("1 of 3 broke") == 1
    assert text.count("50.0") == 1


def test_a_cell_that_some_seeds_did_not_complete_is_drawn_as_partly_broken() -> None:
    whole = [made(seed=seed, scores={"mAP": 0.5}) for seed in range(4)]
    partly = [*whole[:3], broken("at_chance", seed=3)]
    drawn = heat_map(map_of(partly))
    assert {"50.0", "1 of 4 broke", ENDINGS["at_chance"][2]} <= {*words(drawn)}
    assert 'band-0-0-0"' in drawn.svg
    assert ENDINGS["at_chance"][0] in drawn.svg
    assert "band-" not in heat_map(map_of(whole)).svg


def test_a_map_without_scores_and_with_values_of_any_kind() -> None:
    table = stability_rows()
    for row, warmup in zip(table.rows, [None, "long"] * 6, strict=True):
        row |= {"score": None, "warmup_epochs": warmup}
    text = words(heat_map(table))
    assert {"completed", "long", "none"} <= {*text}
    assert cells(heat_map(replace(stability_rows(), rows=[]))) == {}


def test_a_cell_that_was_not_run_stays_empty() -> None:
    rows_of = stability_rows().rows
    found = cells(heat_map(replace(stability_rows(), rows=[*rows_of[:3], *rows_of[4:]])))
    assert "0-1-1" not in found
    assert len(found) == 11


def test_similarity_of_every_place_and_run() -> None:
    plot = similarity_plot(token_runs())
    assert rows(plot)["similarity"].tolist() == [0.2, 0.9, 0.2, 0.9]
    assert {"stem", "block 1"} <= {*words(plot)}


def test_places_of_unlike_stems_stand_in_one_order() -> None:
    plain_stem, conv = ["stem", "block 1", "norm"], ["conv before", "conv after", "stem", "block 1", "block 2", "norm"]
    both = ["conv before", "conv after", "stem", "block 1", "block 2", "norm"]
    assert merged_order([plain_stem, conv]) == merged_order([conv, plain_stem]) == both
    assert merged_order([]) == []


def test_histories_are_thinned_and_end_where_the_numbers_do(tmp_path: Path) -> None:
    table = rows(histories(history_runs(tmp_path)))
    assert table.groupby("status")["loss"].last().to_dict() == {"completed": 3.0, "nonfinite": 5e6}
    write_history(tmp_path / "long", [1.0 + step for step in range(5000)])
    table = rows(histories(RunSet.of([make_run(3, tmp_path / "long"), make_run(4, tmp_path / "none")]), points=50))
    assert len(table) == 50
    assert (table["step"].iloc[0], table["step"].iloc[-1]) == (1, 5000)
    assert ((table["loss"] - table["step"]) == 0).all()


def test_what_is_not_drawn_is_said(tmp_path: Path) -> None:
    write_history(tmp_path, [1.0, 2.0])
    assert f"the first {LINES} of 30 runs" in words(
        histories(RunSet.of(make_run(seed, tmp_path) for seed in range(30)))
    )


def test_the_cost_plot_shows_what_can_be_placed_and_rings_the_front() -> None:
    plot = cost_plot(cost_rows(), "gflops")
    assert rows(plot)["backbone"].tolist() == ["small", "worse", "large"], "no logarithm of nothing"
    assert rows(plot)["pareto_gflops"].tolist() == [True, False, True]
    assert {"small", "large", "Pareto front", "mAP", "GFLOPs of an image"} <= {*words(plot)}


def test_each_cost_can_be_an_axis_and_none_may_be_known() -> None:
    assert {"mAP", "core hours (total)"} <= {*words(cost_plot(cost_rows(), "total_hours"))}
    unknown = cost_rows()
    for row in unknown.rows:
        row["gflops"] = math.nan
    assert rows(cost_plot(unknown, "gflops")).empty


def test_a_fit_is_drawn_where_there_are_points_enough() -> None:
    runs = [
        make_run(number, backbone={"name": f"b{number}"}, scores={"mAP": 0.1 * number + 0.01 * (number % 2)})
        for number in range(1, 6)
    ]
    for number, run in enumerate(runs, start=1):
        run.record.cost["gflops"] = 2.0**number
    few, enough = (cost_plot(cost_table_of([run.record for run in some]), "gflops") for some in (runs[:2], runs))
    assert "FillBetweenPolyCollection" in enough.svg
    assert "FillBetweenPolyCollection" not in few.svg


def all_plots(folder: Path, names: Sequence[str]) -> list[Plot]:
    """Every plot with these names wherever a name can stand."""
    cells_of = [row | {"stem": name} for name in names for row in stability_rows().rows[:3]]
    for row, name in zip(cells_of[::3], names, strict=True):
        row["outcome"] = name
    table = replace(stability_rows(), rows=cells_of)
    runs = [make_run(0, folder, backbone={"name": name}, run_id=name) for name in names]
    for run in runs:
        name = run.record.run_id
        run.record.details["layers"] = [{"place": name, "kind": "block", "similarity": 0.5}]
    named = [row | dict.fromkeys(("backbone", "dataset", "metric"), name) for name in names for row in cost_rows().rows]
    costs = replace(cost_rows(), rows=named)
    shown = RunSet.of(runs)
    return [heat_map(table), similarity_plot(shown), histories(shown), cost_plot(costs, "gflops")]


def test_hostile_names_are_texts_and_no_formulas(tmp_path: Path) -> None:
    write_history(tmp_path, [3.0, 2.0])
    names = [name.replace("\ud800", "") for name in HOSTILE]  # pandas holds no lone surrogate
    for plot in all_plots(tmp_path, names):
        tree = ElementTree.fromstring(plot.svg)
        tags = {item.tag.removeprefix(SVG) for item in tree.iter()}
        assert tags <= {"svg", "g", "path", "text", "tspan", "defs", "clipPath", "rect", "use", "pattern"}
        assert not [key for item in tree.iter() for key in item.attrib if key.lower().startswith("on")]
        shown = words(plot)
        for name in names:
            assert any(plain(name)[:12] in text for text in shown), name
        assert len(rows(plot)) >= len(names)


def test_labels_are_one_short_line() -> None:
    assert plain("a\n\tb\x00c\ud800") == "a b c"
    assert plain("x" * 100, 10) == "x" * 9 + "…"


def test_equal_rows_give_equal_bytes_whatever_the_users_style(tmp_path: Path) -> None:
    write_history(tmp_path, [3.0, 2.0])
    first = all_plots(tmp_path, ["name"])
    with matplotlib.rc_context({"text.color": "red", "font.size": 40, "axes.grid": True, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        second = all_plots(tmp_path, ["name"])
        assert dict(matplotlib.rcParams) == before
    assert first == second


def test_drawings_take_the_pages_colour_and_set_no_rules_for_it(tmp_path: Path) -> None:
    write_history(tmp_path, [3.0, 2.0])
    plots = all_plots(tmp_path, ["name"])
    for plot in plots:
        assert plot.svg.startswith("<svg")
        assert "currentColor" in plot.svg
        assert INK not in plot.svg
        assert "<style" not in plot.svg
        assert "<metadata" not in plot.svg
    ids = [set(re.findall(r'\bid="([^"]+)"', plot.svg)) for plot in plots]
    assert sum(map(len, ids)) == len(set.union(*ids)), "no id stands in two drawings"
    for plot, mine in zip(plots, ids):
        assert set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", plot.svg)) <= mine
