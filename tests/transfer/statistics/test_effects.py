"""Effects of claims: intervals against published values and simulation, verdicts against a plain statement."""

import itertools
import math

import numpy as np
import pytest

from transfer.statistics.effects import conclusion, newcombe, rank_correlation


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
        with pytest.raises(ValueError, match="four runs with different values"):
            rank_correlation(x, y)


def plain(expect: str, low: float, high: float, margin: float | None) -> str:
    """The table of docs/guide/claims.md, a line each."""
    big = math.inf if margin is None else margin
    support, contradiction = {
        ">": (low > 0, high < 0 or (margin is not None and high < big)),
        "<": (high < 0, low > 0 or (margin is not None and low > -big)),
        "=": (-big < low and high < big, low > big or high < -big),
        ">=": (low > -big, high < -big),
        "<=": (high < big, low > big),
    }[expect]
    return "support" if support else "contradiction" if contradiction else "undecided"


def test_a_conclusion_is_that_of_the_documented_table() -> None:
    ends = (-3.0, -1.5, -0.5, 0.5, 1.5, 3.0)
    for (low, high), margin, sign in itertools.product(
        itertools.combinations(ends, 2), (None, 1.0), ("> 0", "a < b", "a > b", "a = b", "a >= b", "a <= b")
    ):
        if margin or "=" not in sign:
            wanted = plain(sign.strip("ab0 "), low, high, margin)
            assert conclusion(sign, low, high, margin) == wanted, (sign, low, high, margin)


def test_two_one_sided_tests_decide_equality_by_their_own_interval() -> None:
    assert conclusion("a = b", -1.2, 0.8, 1.0) == "undecided"
    assert conclusion("a = b", -1.2, 0.8, 1.0, inner=(-0.9, 0.7)) == "support"
    assert conclusion("a <= b", -1.2, 1.2, 1.0, inner=(-0.9, 0.9)) == "support"
    assert conclusion("a >= b", -1.2, 0.8, 1.0, inner=(-1.1, 0.7)) == "undecided"
