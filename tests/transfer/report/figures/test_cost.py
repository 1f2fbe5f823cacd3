"""Score against cost, with the Pareto front and a fit."""

from dataclasses import replace

from tests.transfer.report.figures.plots import cost_rows, rows, words
from tests.transfer.report.page.pages import make_run
from tests.transfer.report.tables.of_records import cost_table_of
from transfer.records.record import Record
from transfer.report.figures.cost import cost_plot


def test_the_cost_plot_shows_what_can_be_placed_and_rings_the_front() -> None:
    plot = cost_plot(cost_rows())
    assert rows(plot)["backbone"].tolist() == ["small", "worse", "large"], "no logarithm of nothing"
    assert rows(plot)["pareto_gflops"].tolist() == [True, False, True]
    assert {"small", "large", "Pareto front", "mAP", "GFLOPs of a forward pass of one image"} <= {*words(plot)}
    assert "Pareto front" not in words(cost_plot(cost_table_of(backbones(1))))


def backbones(count: int) -> list[Record]:
    """Runs of as many backbones."""
    return [
        make_run(
            number,
            backbone={"name": f"b{number}"},
            scores={"mAP": 0.05 * number + 0.01 * (number % 2)},
            cost={"gflops": 2.0**number},
        ).record
        for number in range(1, count + 1)
    ]


def test_a_fit_is_drawn_where_there_are_points_enough_of_one_protocol() -> None:
    def has_band(runs: list[Record]) -> bool:
        return "PolyCollection" in cost_plot(cost_table_of(runs)).svg  # FillBetweenPolyCollection from matplotlib 3.10

    eight = backbones(8)
    short = [replace(run, options=run.options | {"epochs": 3}) for run in eight[4:]]
    assert has_band(eight)
    assert not has_band(eight[:7])
    assert not has_band([*eight[:4], *short]), "of two protocols"
