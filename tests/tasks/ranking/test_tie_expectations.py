import math
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest

from tasks.ranking.tie_expectations import expected_ap, expected_cmc, expected_inp

GROUPS = [(b, n, m, k) for b in (0, 1, 4, 30) for n in range(1, 7) for k in range(1, n + 1) for m in {0, b // 2, b}]


def shares(b, n, m, k, rule):
    """What the group adds to the sum of precisions, for every choice of the places of its k matches."""
    for places in combinations(range(1, n + 1), k):
        total = Fraction(0)
        for seen, place in enumerate(places):
            rank, hits = b + place, m + seen
            here = Fraction(hits + 1, rank)
            earlier = Fraction(hits, rank - 1) if rank > 1 else Fraction(1)
            total += here if rule == "rectangle" else (here + earlier) / 2
        yield total


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
def test_average_precision_is_the_mean_over_all_orders(rule):
    found = expected_ap(*np.array(GROUPS).T, rule=rule)
    for group, mean in zip(GROUPS, found, strict=True):
        all_orders = list(shares(*group, rule))
        assert group[3] * mean == pytest.approx(float(sum(all_orders) / len(all_orders)), abs=1e-13)


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
def test_a_single_match_scores_its_precision_exactly(rule):
    b = np.arange(1, 90_000, 7)
    one, m = np.ones_like(b), b // 3
    expected = (m + 1) / (b + 1)
    if rule == "trapezoid":
        expected = (expected + m / b) / 2
    np.testing.assert_array_equal(expected_ap(b, one, m, one, rule=rule), expected)


def test_two_tied_matches_far_down_lose_no_digits():
    b, m = 82_000, 25
    share = expected_ap(np.array([b]), np.array([2]), np.array([m]), np.array([2]))
    assert share[0] == pytest.approx((26 / 82_001 + 27 / 82_002) / 2, rel=1e-9)


def test_cmc_is_hypergeometric():
    groups = [(b, n, k) for b, n, _, k in GROUPS]
    curves = expected_cmc(*np.array(groups).T, max_rank=12)
    for (b, n, k), curve in zip(groups, curves):
        for rank, chance in enumerate(curve, start=1):
            drawn = min(max(rank - b, 0), n)
            assert chance == pytest.approx(1 - comb(n - k, drawn) / comb(n, drawn), abs=1e-14)
        assert (np.diff(curve) >= 0).all()


def test_inp_is_the_mean_over_all_orders():
    matches = np.array([m + k for _, _, m, k in GROUPS])
    b, n, _, k = np.array(GROUPS).T
    for group, total, inp in zip(GROUPS, matches, expected_inp(b, n, k, matches)):
        b_, n_, _, k_ = group
        orders = [Fraction(int(total), b_ + max(places)) for places in combinations(range(1, n_ + 1), k_)]
        assert inp == pytest.approx(float(sum(orders) / len(orders)), abs=1e-14)


def test_a_tie_of_a_whole_large_gallery():
    n, k = 20_000, 17
    zero, tied, hits = (np.array([value]) for value in (0, n, k))
    inp = math.fsum(comb(x - 1, k - 1) / comb(n, k) * k / x for x in range(k, n + 1))
    assert expected_inp(zero, tied, hits, hits)[0] == pytest.approx(inp, rel=1e-12)
    share = expected_ap(zero, tied, zero, hits)
    assert share[0] == pytest.approx(np.mean([(1 + u * (k - 1) / (n - 1)) / (1 + u) for u in range(n)]), rel=1e-12)
