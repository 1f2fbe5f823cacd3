"""Score against cost, with the Pareto front and a fit."""

import math

from tests.transfer.report.figures.plots import cost_rows, rows, words
from tests.transfer.report.page.pages import make_run
from tests.transfer.report.tables.of_records import cost_table_of
from transfer.report.figures.cost import cost_plot


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
    assert "PolyCollection" in enough.svg  # FillBetweenPolyCollection from matplotlib 3.10 on
    assert "PolyCollection" not in few.svg
