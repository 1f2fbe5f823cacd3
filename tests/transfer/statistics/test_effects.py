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


def plain(expect: str, low: float, high: float, margin: float) -> str:
    """The table of docs/guide/claims.md, a line each."""
    within = -margin < low and high < margin
    support, contradiction = {
        ">": (low > 0 and not within, high <= -margin),
        "<": (high < 0 and not within, low >= margin),
        "=": (within, low >= margin or high <= -margin),
        ">=": (low > -margin, high <= -margin),
        "<=": (high < margin, low >= margin),
    }[expect]
    other = "no relevant effect" if within and "=" not in expect else "undecided"
    return "support" if support else "contradiction" if contradiction else other


def test_a_conclusion_is_that_of_the_documented_table() -> None:
    ends = (-3.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0)
    for (low, high), margin, sign in itertools.product(
        itertools.combinations(ends, 2), (None, 1.0), ("> 0", "a < b", "a > b", "a = b", "a >= b", "a <= b")
    ):
        if margin or "=" not in sign:
            wanted = plain(sign.strip("ab0 "), low, high, margin or 0.0)
            assert conclusion(sign, low, high, margin) == wanted, (sign, low, high, margin)


def test_too_few_samples_that_differ_call_nothing_smaller_than_the_margin() -> None:
    for expect in ("a = b", "a >= b", "a <= b", "a > b"):
        assert conclusion(expect, -0.5, 0.4, 1.0, enough=False) == "undecided"
    assert conclusion("a > b", 0.1, 0.4, 1.0, enough=False) == "support"
