import math
from math import comb

import numpy as np
import pytest

from tasks.ranking.ties import expected_ap, expected_cmc, expected_inp
from tests.oracles.ranking import TieGroup, _inp, _precisions
from tests.oracles.ranking import expected_cmc as stated_cmc

GROUPS = [(b, n, m, k) for b in (0, 1, 4, 30) for n in range(1, 7) for k in range(1, n + 1) for m in {0, b // 2, b}]


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
def test_groups_score_as_the_oracle_states(rule):
    b, n, m, k = np.array(GROUPS).T
    shares = k * expected_ap(b, n, m, k, rule=rule)
    curves, inps = expected_cmc(b, n, k, max_rank=12), expected_inp(b, n, k, m + k)
    for (before, size, earlier, matches), share, curve, inp in zip(GROUPS, shares, curves, inps, strict=True):
        group = TieGroup(before, size, earlier, matches)
        assert share == pytest.approx(_precisions(group, rule), abs=1e-13)
        assert curve == pytest.approx([stated_cmc(group, place) for place in range(1, 13)], abs=1e-14)
        assert inp == pytest.approx(_inp(group, earlier + matches), abs=1e-14)


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


def test_a_tie_of_a_whole_large_gallery():
    n, k = 20_000, 17
    zero, tied, hits = (np.array([value]) for value in (0, n, k))
    inp = math.fsum(comb(x - 1, k - 1) / comb(n, k) * k / x for x in range(k, n + 1))
    assert expected_inp(zero, tied, hits, hits)[0] == pytest.approx(inp, rel=1e-12)
    share = expected_ap(zero, tied, zero, hits)
    assert share[0] == pytest.approx(np.mean([(1 + u * (k - 1) / (n - 1)) / (1 + u) for u in range(n)]), rel=1e-12)
