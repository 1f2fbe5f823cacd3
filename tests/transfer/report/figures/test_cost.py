"""Score against cost, with the Pareto front."""

from dataclasses import replace

import pytest
from matplotlib.collections import PathCollection

from tests.transfer.report.figures.plots import cost_rows, rows, words
from tests.transfer.report.page.pages import make_run
from tests.transfer.report.tables.of_records import cost_table_of
from transfer.report.figures.scores import cost_plot
from transfer.report.figures.svg import Plot
from transfer.report.tables.table import Table


def named_plot(costs: Table) -> Plot | None:
    return cost_plot(costs, {row["run"][0]: row["backbone"] for row in costs.rows})


def test_the_cost_plot_shows_what_can_be_placed_and_rings_the_front() -> None:
    plot = named_plot(cost_rows())
    assert rows(plot)["backbone"].tolist() == ["small", "worse", "large"], "no logarithm of nothing"
    assert rows(plot)["pareto_gflops"].tolist() == [True, False, True]
    assert {"small", "large", "Pareto front", "mAP", "GFLOP per image (forward pass)"} <= {*words(plot)}
    alone = make_run(1, scores={"mAP": 0.05}, cost={"gflops": 2.0}).record
    assert named_plot(cost_table_of([alone])) is None, "one point shows nothing"


@pytest.mark.parametrize(("last", "drawn"), [(1.04, False), (1.06, True)])
def test_no_point_hides_another_and_nearly_equal_costs_are_not_drawn(last: float, drawn: bool) -> None:
    rows = [row | {"gflops": gflops} for row, gflops in zip(cost_rows().rows, (1.0, 1.0, last))]
    plot = named_plot(replace(cost_rows(), rows=rows))
    assert (plot is not None) == drawn
    points = [] if plot is None else plot.figure.axes[0].collections
    assert not any(len(one.get_facecolor()) for one in points if isinstance(one, PathCollection))
