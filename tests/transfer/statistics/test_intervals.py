"""Intervals of rates and of a rank correlation against published values, scipy and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from transfer.core.errors import UserError
from transfer.statistics.intervals import adjusted, newcombe, rank_correlation, wilson


@pytest.mark.parametrize(("successes", "of"), [(0, 3), (1, 3), (3, 3), (5, 10), (17, 400)])
def test_wilson(successes: int, of: int) -> None:
    found = wilson(successes, of)
    theirs = stats.binomtest(successes, of).proportion_ci(method="wilson")
    assert found == pytest.approx((theirs.low, theirs.high))
    assert 0 <= found[0] <= successes / of <= found[1] <= 1
    assert wilson(0, 0) == (0.0, 1.0)


def test_corrections() -> None:
    assert adjusted([0.04, 0.001, 0.03, 0.5, 0.011]) == pytest.approx([0.09, 0.005, 0.09, 0.5, 0.044])
    assert adjusted([]) == []


def test_the_interval_of_two_rates_is_that_of_newcombe_s_table_2() -> None:
    assert newcombe(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert newcombe(3, 10, 9, 10) == pytest.approx((-0.8090, -0.1705), abs=5e-5)
    assert newcombe(10, 10, 0, 10) == pytest.approx((0.6075, 1.0), abs=5e-5)


def test_the_interval_of_a_rank_correlation_covers_it_as_often_as_it_says() -> None:
    rng, normal, hits = np.random.default_rng(0), 0.6, 0
    truth = 6 / math.pi * math.asin(normal / 2)  # Spearman's of a bivariate normal (Pearson 1907)
    for _ in range(400):
        x, z = rng.normal(size=(2, 25))
        _, low, high = rank_correlation(x, normal * x + math.sqrt(1 - normal**2) * z)
        hits += low < truth < high
    assert 0.92 < hits / 400 < 0.98


def test_a_perfect_order_has_an_interval_and_too_few_pairs_have_none() -> None:
    rho, low, high = rank_correlation(range(8), [2, 3, 4, 5, 9, 10, 11, 12])
    assert (rho, high) == pytest.approx((1, 1))
    assert 0 < low < 1
    for x, y in (([1, 2, 3], [1, 2, 3]), ([1, 1, 1, 1], [1, 2, 3, 4])):
        with pytest.raises(UserError, match="four runs with different values"):
            rank_correlation(x, y)
