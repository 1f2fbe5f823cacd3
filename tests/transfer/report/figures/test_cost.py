"""Score against cost, with the Pareto front."""

import pytest
from matplotlib.collections import PathCollection

from tests.transfer.report.figures.plots import cost_rows, rows, words
from tests.transfer.report.page.pages import make_run
from tests.transfer.report.tables.of_records import cost_table_of
from transfer.report.figures.cost import cost_plot


def test_the_cost_plot_shows_what_can_be_placed_and_rings_the_front() -> None:
    plot = cost_plot(cost_rows())
    assert rows(plot)["backbone"].tolist() == ["small", "worse", "large"], "no logarithm of nothing"
    assert rows(plot)["pareto_gflops"].tolist() == [True, False, True]
    assert {"small", "large", "Pareto front", "mAP", "GFLOP per image (forward pass)"} <= {*words(plot)}
    alone = make_run(1, scores={"mAP": 0.05}, cost={"gflops": 2.0}).record
    assert cost_plot(cost_table_of([alone])) is None, "one point shows nothing"


@pytest.mark.parametrize("last", [1.04, 1.06])
def test_points_on_each_other_differ_in_size_and_nearly_equal_costs_are_not_drawn(last: float) -> None:
    given = [("one", 0.1, 1.0), ("same", 0.1, 1.0), ("last", 0.9, last)]
    costs = [{"backbone": {"name": name}, "scores": {"mAP": at}, "cost": {"gflops": cost}} for name, at, cost in given]
    plot = cost_plot(cost_table_of([make_run(number, **one).record for number, one in enumerate(costs)]))
    assert (plot is None) == (last == 1.04)
    if plot:
        points = [one for one in plot.figure.axes[0].collections if isinstance(one, PathCollection)]
        sizes = {one.get_label(): one.get_sizes()[0] for one in points}
        assert len({sizes["one"], sizes["same"]}) == 2
