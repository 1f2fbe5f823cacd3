"""Tolerances between a recorded score and its recomputation."""

import numpy as np
import pytest

from tasks.reference.recomputed import SCORE_TOLERANCES, SampleScores, ScoreComparison, compare_mean, first_difference

NAMES = np.array([f"image {place}" for place in range(100)])


def rows(
    recorded: np.ndarray, score: float, low: float, high: float, precision: str = "fp32", count: int = 100
) -> list[ScoreComparison]:
    """Compare scores of samples that all have one value."""
    values = SampleScores()
    for _ in range(count):
        values.add(score, low, high)
    return compare_mean("top1", float(recorded.mean()), recorded, values, np.arange(count), NAMES, precision)


def test_a_sample_outside_of_its_bounds_is_named_even_where_the_mean_is_right() -> None:
    recorded = np.full(100, 0.5)
    recorded[3], recorded[4] = 0.6, 0.4
    (row,) = rows(recorded, 0.5, 0.5, 0.5)
    assert row.difference < 1e-12
    assert not row.agrees
    assert row.differing_samples == "2 of 100 samples, image 3 with 0.6 for 0.5"
    assert rows(recorded, 0.5, 0.4, 0.6)[0].agrees


@pytest.mark.parametrize("precision", SCORE_TOLERANCES)
def test_a_score_may_not_drift_however_little_is_known_of_its_samples(precision: str) -> None:
    most = SCORE_TOLERANCES[precision] + 0.02
    assert rows(np.full(100, 0.5 + 0.9 * most), 0.5, 0, 1, precision)[0].agrees
    assert not rows(np.full(100, 0.5 + 1.1 * most), 0.5, 0, 1, precision)[0].agrees


def test_samples_that_do_not_count_must_not_count_in_either() -> None:
    recorded = np.full(100, 0.5)
    recorded[7] = np.nan
    assert "image 7" in rows(recorded, 0.5, 0.5, 0.5)[0].differing_samples


def test_of_a_subset_the_whole_score_must_be_the_mean_of_the_outcomes() -> None:
    recorded = np.linspace(0.5, 0.5, 100)
    assert [row.agrees for row in rows(recorded, 0.5, 0.5, 0.5, count=10)] == [True]
    values = SampleScores([0.5] * 10, [0.5] * 10, [0.5] * 10)
    named = {row.name: row.agrees for row in compare_mean("top1", 0.9, recorded, values, np.arange(10), NAMES, "fp32")}
    assert named == {"top1": True, "top1, mean of outcomes": False}


def test_a_score_that_one_side_lacks_does_not_agree() -> None:
    assert not ScoreComparison("box_AP", None, 0.5, 1.0).agrees
    assert not ScoreComparison("box_AP", 0.5, None, 1.0).agrees


def test_numbers_of_one_size() -> None:
    assert not first_difference({"a": 1.0, "b": None}, {"a": 1.0001, "b": None}, ("a", "b"), 1e-3)
    assert first_difference({"a": 1.0}, {"a": 1.01}, ("a",), 1e-3) == "a 1.0 for 1.01"
    assert first_difference({"a": None}, {"a": 1.0}, ("a",), 1e-3)
