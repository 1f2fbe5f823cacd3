"""Score against cost, with the Pareto front and a fit."""

from tests.transfer.report.figures.plots import cost_rows, rows, words
from tests.transfer.report.page.pages import make_run
from tests.transfer.report.tables.of_records import cost_table_of
from transfer.report.figures.cost import cost_plot


def test_the_cost_plot_shows_what_can_be_placed_and_rings_the_front() -> None:
    plot = cost_plot(cost_rows())
    assert rows(plot)["backbone"].tolist() == ["small", "worse", "large"], "no logarithm of nothing"
    assert rows(plot)["pareto_total_hours"].tolist() == [True, False, True]
    assert {"small", "large", "Pareto front", "mAP", "core hours (total)"} <= {*words(plot)}


def test_a_fit_is_drawn_where_there_are_points_enough() -> None:
    runs = [
        make_run(
            number,
            backbone={"name": f"b{number}"},
            scores={"mAP": 0.1 * number + 0.01 * (number % 2)},
            cost={"device_hours": 2.0**number},
        ).record
        for number in range(1, 6)
    ]
    assert "PolyCollection" in cost_plot(cost_table_of(runs)).svg  # FillBetweenPolyCollection from matplotlib 3.10 on
    assert "PolyCollection" not in cost_plot(cost_table_of(runs[:2])).svg
