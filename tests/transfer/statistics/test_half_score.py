"""Half-score rates against a plain scan of a fine grid, and against scipy's paired interval."""

import math

import numpy as np
import pytest
from scipy import stats

from transfer.statistics.half_score import falls, half_score_rates, half_score_summary, half_way, log_ratio

RATES = (1.0, 2.0, 4.0, 8.0)


def curve(*scores: float) -> list[tuple[float, float]]:
    return list(zip(RATES, scores, strict=False))


def test_a_fall_is_where_a_fine_grid_falls_below_the_line() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        scores, line = rng.uniform(0, 1, 4), rng.uniform(0, 1)
        fine = np.linspace(0, 3, 30_001)
        values = np.interp(fine, range(4), scores)
        right = fine >= scores.argmax()
        below = np.flatnonzero((values[:-1] > line) & (values[1:] <= line) & right[:-1])
        found = falls(curve(*scores), line)
        inner = [one.low for one in found if one.low == one.high]
        assert np.log2(inner) == pytest.approx(fine[below], abs=2e-4)
        assert (found[0].high == RATES[0]) == bool(scores.max() <= line)
        assert (found[-1].high == math.inf) == bool(scores[-1] > line)
    (fall,) = falls([(0.0, 50.0), (5.0, 10.0)], 30.0)
    assert (fall.low, fall.high) == (0.0, 5.0), "behind a rate of 0 it is bounded by its neighbours"


def test_half_way_is_between_chance_and_the_best_mean_and_bounds_are_kept() -> None:
    seeds = {0: curve(50, 40, 10, 10), 1: curve(54, 20, 10, 40), 2: curve(20, 10, 10, 10), 3: curve(60, 60, 60, 60)}
    line = half_way({0: seeds[0], 1: seeds[1]}, 10.0)
    assert line == 31.0  # (10 + 52) / 2
    rates = half_score_rates(seeds, line)
    assert rates[0] == pytest.approx((2 ** (1 + 9 / 30),) * 2)
    assert rates[1] == pytest.approx((2 ** (23 / 34), math.inf))  # up again, and beyond the grid
    assert rates[2] == (0.0, 1.0)
    assert rates[3] == (8.0, math.inf)
    mean, low, high = half_score_summary({0: seeds[0]}, 10.0)
    assert (mean, low, high) == pytest.approx((2 ** (1 + 10 / 30),) * 3)  # by its own line, 30
    assert half_score_summary(seeds, 10.0)[1:] == pytest.approx((math.nan, math.nan), nan_ok=True)


def test_the_contrast_is_the_paired_interval_of_the_logarithms() -> None:
    rng = np.random.default_rng(1)
    a, b = np.exp2(rng.normal(1, 0.3, 5)), np.exp2(rng.normal(0, 0.3, 5))
    ratio = log_ratio(*({seed: (rate, rate) for seed, rate in enumerate(of)} for of in (a, b)))
    wanted = stats.ttest_rel(np.log2(a), np.log2(b)).confidence_interval()
    assert ratio[:3] == pytest.approx((np.log2(a / b).mean(), *wanted))
    wider = log_ratio({seed: (rate / 2, rate) for seed, rate in enumerate(a)}, dict(enumerate(zip(b, b, strict=True))))
    assert wider[:3] == pytest.approx((ratio.mean - 0.5, ratio.low - 1, ratio.high))


def test_where_a_rate_is_only_bounded_every_seed_has_to_agree() -> None:
    b, beyond = {0: (1.0, 1.0), 1: (1.0, 1.0)}, (8.0, math.inf)
    above = log_ratio({0: beyond, 1: (2.0, 2.0)}, b)
    assert (math.isnan(above.mean), above.low, above.high) == (True, 1.0, math.inf)
    assert above.verdict("a > b", 1.0) == "support"
    assert log_ratio({0: beyond, 1: (0.5, 0.5)}, b).verdict("a > b", 1.0) == "undecided"
    assert log_ratio({0: (0.0, 0.5), 1: (0.0, 0.25)}, b).verdict("a > b", 1.0) == "contradiction"
    assert log_ratio({0: beyond, 1: beyond}, {0: beyond, 1: beyond}).verdict("a = b", 1.0) == "undecided"
