"""The forest plot: what is drawn is what the comparison has."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.transfer.report.tables.test_comparison import both, compared, made
from transfer.comparison.compare_arms import Comparison
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.figures.forest import UNDECIDED, forest_plot
from transfer.report.figures.svg import COLORS, Plot
from transfer.report.tables.pivot import names_of_runs


def plot_of(comparison: Comparison, runs: list[Run]) -> Plot | None:
    known = RunSet.of(runs)
    return forest_plot(comparison, known, names_of_runs(known))


def test_rows_intervals_and_sides(tmp_path: Path) -> None:
    runs = both(tmp_path)
    comparison = compared(runs, "stem=conv", "stem=patchify")
    plot = plot_of(comparison, runs)
    assert plot is not None
    for text in ("knn top1 on toy_market", "← patchify better", "→ conv better", "percentage points"):
        assert text in plot.svg
    assert "top5" not in plot.svg
    assert COLORS[0] in plot.svg
    (row,) = [row for row in comparison.rows if row.primary]
    assert row.estimate is not None
    (drawn,) = csv.DictReader(io.StringIO(plot.csv))
    assert (drawn["task"], drawn["score"], drawn["verdict"]) == ("knn", "top1", "a better (random weights)")
    assert [float(drawn[name]) for name in ("difference", "low", "high")] == pytest.approx(
        [100 * value for value in (row.estimate.estimate, row.estimate.low, row.estimate.high)]
    )


def test_scores_that_the_headline_does_not_count_are_marked(tmp_path: Path) -> None:
    runs = [made(tmp_path, stem, task=task) for stem in ("conv", "patchify") for task in ("knn", "pretrain-dino")]
    plot = plot_of(compared(runs, "stem=conv", "stem=patchify"), runs)
    assert plot is not None
    assert re.findall(r">([^<>]*), not counted<", plot.svg) == ["pretrain-dino top1 on toy_market"]


def test_what_is_not_decided_is_hollow_and_breakdowns_are_named(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv", seed=seed, level=0.5) for seed in range(2)]
    runs += [made(tmp_path, "patchify", seed=seed, level=0.51) for seed in (5, 6)]
    runs.append(made(tmp_path, "patchify", seed=7, broke=True))
    plot = plot_of(compared(runs, "stem=conv", "stem=patchify"), runs)
    assert plot is not None
    assert UNDECIDED in plot.svg
    assert COLORS[0] not in plot.svg
    assert re.search("✗ patchify failed in 1 of 3", plot.svg)


def test_a_score_of_which_less_is_better_lies_on_the_side_of_the_better_arm(tmp_path: Path) -> None:
    metrics = {"top1": {"direction": "lower", "bounds": [0, 1]}}
    runs = [made(tmp_path, stem, seed=seed, metrics=metrics) for stem in ("conv", "patchify") for seed in range(2)]
    comparison = compared(runs, "stem=conv", "stem=patchify")
    plot = plot_of(comparison, runs)
    assert plot is not None
    assert COLORS[1] in plot.svg, "the second variant is better"
    (drawn,) = csv.DictReader(io.StringIO(plot.csv))
    assert float(drawn["difference"]) > 0, "the CSV keeps the table's sign"
    assert drawn["verdict"] == "b better (random weights)"


def test_nothing_to_draw(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv"), made(tmp_path, "patchify", broke=True)]
    assert plot_of(compared(runs, "stem=conv", "stem=patchify"), runs) is None
