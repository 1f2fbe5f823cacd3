"""The forest plot: what is drawn is what the comparison has."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.transfer.report.tables.test_comparison import both, compared, made
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.figures.scores import UNDECIDED, forest_plot
from transfer.report.figures.svg import COLORS
from transfer.report.tables.pivot import names_of_runs


def drawn(runs: list[Run]) -> tuple[str, list[dict[str, str]]]:
    """The drawing of conv against patchify, and the rows that it shows."""
    known = RunSet.of(runs)
    plot = forest_plot(compared(runs, "stem=conv", "stem=patchify"), known, names_of_runs(known))
    return ("", []) if plot is None else (plot.svg, list(csv.DictReader(io.StringIO(plot.csv))))


def test_rows_intervals_and_sides(tmp_path: Path) -> None:
    runs = both(tmp_path)
    svg, (shown,) = drawn(runs)
    for text in ("knn top1 on toy_market", "← patchify better", "→ conv better", "percentage points", COLORS[0]):
        assert text in svg
    assert "top5" not in svg
    (row,) = [row for row in compared(runs, "stem=conv", "stem=patchify").rows if row.primary]
    assert row.estimate is not None
    assert (shown["task"], shown["score"], shown["verdict"]) == ("knn", "top1", "a better (random weights)")
    assert [float(shown[name]) for name in ("difference", "low", "high")] == pytest.approx(
        [100 * value for value in (row.estimate.estimate, row.estimate.low, row.estimate.high)]
    )


def test_scores_that_the_headline_does_not_count_are_marked(tmp_path: Path) -> None:
    svg, _ = drawn([made(tmp_path, stem, task=of) for stem in ("conv", "patchify") for of in ("knn", "pretrain-dino")])
    assert re.findall(r">([^<>]*), not counted<", svg) == ["pretrain-dino top1 on toy_market"]


def test_what_is_not_decided_is_hollow_and_breakdowns_are_named(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv", seed=seed, level=0.5) for seed in range(2)]
    runs += [made(tmp_path, "patchify", seed=seed, level=0.51) for seed in (5, 6)]
    svg, _ = drawn([*runs, made(tmp_path, "patchify", seed=7, broke=True)])
    assert UNDECIDED in svg
    assert COLORS[0] not in svg
    assert "✗ patchify failed in 1 of 3" in svg
    assert drawn([runs[0], made(tmp_path, "patchify", broke=True)]) == ("", []), "nothing to draw"


def test_a_score_of_which_less_is_better_lies_on_the_side_of_the_better_arm(tmp_path: Path) -> None:
    metrics = {"top1": {"direction": "lower", "bounds": [0, 1]}}
    svg, (shown,) = drawn(
        [made(tmp_path, stem, seed=n, metrics=metrics) for stem in ("conv", "patchify") for n in (0, 1)]
    )
    assert COLORS[1] in svg, "the second variant is better"
    assert float(shown["difference"]) > 0, "the CSV keeps the table's sign"
    assert shown["verdict"] == "b better (random weights)"
