import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaincinv, ndtr, stdtrit

from tests.benchmarks.statistics import Planted, coverage
from transfer.statistics import intervals
from transfer.statistics.contrasts import _freedom, contrast
from transfer.statistics.intervals import Estimate, adjusted, cluster_draws, wilson


def difference(a: np.ndarray, b: np.ndarray, draws: int = 4000, **given) -> Estimate:
    """a - b of cluster means [S, C], every cluster one sample."""
    sums = np.concatenate([a, b]).T
    drawn = cluster_draws(sums, np.ones_like(sums), draws=draws).T
    means = sums.mean(axis=0)
    parts = [slice(0, len(a)), slice(len(a), None)]
    return contrast(
        [means[part] for part in parts], [drawn[part] for part in parts], (1, -1), clusters=a.shape[1], **given
    )


@pytest.mark.parametrize("kinds", [3, 1000], ids=["few kinds", "all different"])
def test_draws_vary_as_the_formula_says(kinds: int) -> None:
    rng = np.random.default_rng(kinds)
    value, size = rng.random(kinds), rng.integers(1, 5, kinds)
    which = rng.integers(0, kinds, 1000)
    sums, counts = (value * size)[which][:, None], size[which][:, None]
    drawn = cluster_draws(sums, counts, draws=6000)
    mean = sums.sum() / counts.sum()
    linear = (sums - mean * counts) / counts.sum()
    assert drawn.mean() == pytest.approx(mean, abs=4 * drawn.std() / math.sqrt(len(drawn)))
    assert drawn.std() == pytest.approx(math.sqrt((linear**2).sum()), rel=0.05)


def test_draws_that_are_kept_are_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(0).random((70, 2))
    kept = [cluster_draws(sums, np.ones_like(sums), draws=300, seed=seed) for seed in (0, 1, 0)]
    assert (kept[0] == kept[2]).all()
    assert (kept[0] != kept[1]).all()
    monkeypatch.setattr(intervals, "KEPT", 0)
    monkeypatch.setattr(intervals, "BLOCK", 1000)  # in many steps
    assert cluster_draws(sums, np.ones_like(sums), draws=300) == pytest.approx(kept[0], rel=1e-12)


def test_every_column_gets_the_same_clusters() -> None:
    sums = np.random.default_rng(0).random((300, 1)) @ np.array([[1.0, 1.0, 3.0]])
    drawn = cluster_draws(sums, np.ones_like(sums), draws=500)
    assert (drawn[:, 0] == drawn[:, 1]).all()
    np.testing.assert_allclose(drawn[:, 2], 3 * drawn[:, 0])


def test_a_draw_in_which_nothing_counts_is_no_number() -> None:
    drawn = cluster_draws(np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]]), draws=100)
    assert np.isnan(drawn).any()
    assert set(drawn[~np.isnan(drawn)]) == {1.0}


@pytest.mark.parametrize("coefficients", [(1, -1), (1, -1, -1, 1)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_identical_predictions_differ_by_exactly_nothing(seeds: int, coefficients: tuple[int, ...]) -> None:
    one = np.random.default_rng(0).random((seeds, 200))
    drawn = cluster_draws(one.T, np.ones_like(one.T), draws=1000).T
    many = len(coefficients)
    labels = [range(seeds)] * many
    found = contrast([one.mean(axis=1)] * many, [drawn] * many, coefficients, clusters=200, seeds=labels)
    assert (found.estimate, found.low, found.high, found.p, found.error) == (0.0, 0.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "planted",
    [
        Planted((1, 1), False, 0.0, 1.0),
        Planted((3, 3), False, 1.0, 0.5),
        Planted((3, 3), True, 0.0, 0.0),
    ],
    ids=str,
)
def test_coverage(planted: Planted) -> None:
    """Some of the 10,000 data sets of the benchmark; 3 standard errors about the bounds of 94 and 96 %."""
    held, _ = coverage(planted, 800, draws=300)
    assert 0.94 - 0.025 < held < 0.96 + 0.021


@pytest.mark.parametrize("seeds", [2, 2.5, 3, 4, 8, 20])
def test_degrees_of_freedom_hold_the_level_for_every_share_of_the_seeds(seeds: float) -> None:
    """The chance that |T| < t sqrt(V), T normal, V the seeds' share times chi^2 / seeds plus the known rest."""
    chi = 2 * gammaincinv(seeds / 2, (np.arange(2000) + 0.5) / 2000) / seeds
    for share in (0.001, *np.linspace(0.02, 0.98, 49), 0.999):
        total = 1 - share + share * chi
        freedom = np.array([_freedom(part, seeds, 1e9) for part in share * chi / total])
        held = (2 * ndtr(stdtrit(freedom, 0.975) * np.sqrt(total)) - 1).mean()
        assert 0.94 < held < 0.96, share


def test_only_seeds_vary() -> None:
    """Nothing but the seed's effect: the intervals of the paired t-test and, nearly, of Welch's."""
    rng = np.random.default_rng(1)
    effects = rng.normal(size=(2, 5))
    a, b = (np.repeat(one[:, None], 200, axis=1) for one in effects)
    labels = [range(5), range(5)]
    paired = difference(a, b, seeds=labels)
    theirs = stats.ttest_rel(*effects).confidence_interval()
    assert (paired.low, paired.high) == pytest.approx(tuple(theirs))
    assert paired.paired
    apart = difference(a, b, seeds=[range(5), range(5, 10)])
    theirs = stats.ttest_ind(*effects, equal_var=False).confidence_interval()
    assert not apart.paired
    assert apart.high - apart.low == pytest.approx(theirs.high - theirs.low, rel=0.05)


def test_seeds_are_paired_by_label_not_by_place() -> None:
    rng = np.random.default_rng(2)
    shared = rng.normal(size=(4, 1))
    a, b = shared + rng.normal(size=(4, 200)), shared + rng.normal(size=(4, 200))
    order = [2, 0, 3, 1]
    straight = difference(a, b, seeds=[range(4), range(4)])
    shuffled = difference(a, b[order], seeds=[range(4), order])
    assert straight.low == pytest.approx(shuffled.low)
    assert straight.error < difference(a, b, seeds=[range(4), range(4, 8)]).error / 2


def test_two_seeds_are_too_few_for_pairs() -> None:
    rng = np.random.default_rng(10)
    a, b = (rng.normal(size=(2, 1)) + rng.normal(size=(2, 200)) for _ in range(2))
    found = difference(a, b, seeds=[range(2), range(2)])
    assert not found.paired
    assert (found.low, found.high) == (difference(a, b).low, difference(a, b).high)
    assert difference(a, a, seeds=[range(2), range(2)]).error == 0.0


def test_one_seed_says_nothing_of_seeds() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.random((1, 200)), rng.random((1, 200))
    found = difference(a, b)
    assert found.seed_error is None
    assert found.error == found.cluster_error
    error = (a - b).std(ddof=1) / math.sqrt(200)
    assert found.error == pytest.approx(error, rel=0.04)
    assert found.high - found.low == pytest.approx(2 * 1.972 * error, rel=0.06)


def test_a_side_of_one_seed_borrows() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(3, 1)) + np.zeros((3, 200)), np.zeros((1, 200))
    found = difference(a, b)
    assert found.borrowed
    assert found.seed_error == pytest.approx(a[:, 0].std(ddof=1) * math.sqrt(1 / 3 + 1))
    assert found.freedom == pytest.approx(2)


def test_p_and_interval_say_the_same() -> None:
    rng = np.random.default_rng(5)
    seen = set()
    for number in range(60):
        a, b = rng.exponential(size=(2, 1 + number % 3, 60))
        found = difference(a + number / 100, b, draws=300)
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high)
        seen.add(found.p < 0.05)
    assert seen == {True, False}


@pytest.mark.parametrize(("only_a", "only_b"), [(40, 20), (30, 25), (12, 2), (90, 60)])
def test_accuracies_agree_with_mcnemars_exact_test(only_a: int, only_b: int) -> None:
    a, b = np.zeros((1, 1000)), np.zeros((1, 1000))
    a[0, :only_a] = 1
    b[0, only_a : only_a + only_b] = 1
    a[0, 500:], b[0, 500:] = 1, 1
    exact = stats.binomtest(only_a, only_a + only_b).pvalue
    found = difference(a, b)
    assert found.estimate == pytest.approx((only_a - only_b) / 1000)
    assert 0.3 < found.p / exact < 1.2  # the exact test is the more careful of the two
    if not 0.02 < exact < 0.1:
        assert (found.p < 0.05) == (exact < 0.05)


def test_an_interaction_is_the_difference_of_differences() -> None:
    rng = np.random.default_rng(7)
    corners = [rng.random((3, 200)) + level for level in (0.9, 0.5, 0.4, 0.3)]
    drawn = [cluster_draws(one.T, np.ones_like(one.T), draws=2000).T for one in corners]
    means = [one.mean(axis=1) for one in corners]
    found = contrast(means, drawn, (1, -1, -1, 1), clusters=200, seeds=[range(3)] * 4)
    plain, draws = ((a - b) - (c - d) for a, b, c, d in (means, drawn))
    assert found.estimate == pytest.approx(plain.mean())
    by_hand = contrast([plain], [draws], (1,), clusters=200)
    assert (found.low, found.high, found.p) == pytest.approx((by_hand.low, by_hand.high, by_hand.p))
    assert found.seeds == (3, 3, 3, 3)


def test_the_smallest_difference_is_shown_four_times_in_five() -> None:
    rng = np.random.default_rng(8)
    effects = rng.normal(size=(6, 1)) + np.zeros((6, 50))
    found = difference(effects, np.zeros((6, 50)), seeds=[range(6), range(6)])
    shift, limit = found.smallest_difference() / found.error, stats.t.ppf(0.975, 5)
    assert stats.nct.sf(limit, 5, shift) + stats.nct.cdf(-limit, 5, shift) == pytest.approx(0.8, abs=0.002)


def test_planted_variance_between_seeds_is_found() -> None:
    rng = np.random.default_rng(9)
    values = 0.5 * rng.normal(size=(40, 1)) + 8 * rng.normal(size=(40, 200))
    drawn = cluster_draws(values.T, np.ones_like(values.T), draws=1000).T
    assert values.mean(axis=1).std() > 0.65  # what samples add
    found = contrast([values.mean(axis=1)], [drawn], [1], clusters=200, seeds=[range(40)])
    assert found.seed_error is not None
    assert found.seed_error * math.sqrt(40) == pytest.approx(0.5, abs=0.15)
    alone = contrast([values[:1].mean(axis=1)], [drawn[:1]], [1], clusters=200, seeds=[range(1)])
    assert alone.seed_error is None


@pytest.mark.parametrize(("successes", "of"), [(0, 3), (1, 3), (3, 3), (5, 10), (17, 400)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson(successes: int, of: int, level: float) -> None:
    found = wilson(successes, of, level)
    theirs = stats.binomtest(successes, of).proportion_ci(level, method="wilson")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_wilson_of_nothing() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="no rate"):
        wilson(4, 3)


def test_corrections() -> None:
    ps = [0.04, 0.001, 0.03, 0.5, 0.011]
    assert adjusted(ps, "holm") == pytest.approx([0.09, 0.005, 0.09, 0.5, 0.044])
    assert adjusted(ps, "bh") == pytest.approx(stats.false_discovery_control(ps))
    assert adjusted(ps, "none") == ps
    assert adjusted([]) == []
    with_gap = adjusted([0.01, math.nan, 0.02])
    assert with_gap[::2] == pytest.approx([0.02, 0.02])
    assert math.isnan(with_gap[1])
    with pytest.raises(ValueError, match="holm, bh or none"):
        adjusted(ps, "bonferroni")
