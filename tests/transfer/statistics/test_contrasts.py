"""Intervals against scipy's tests, matrices written out, and data whose truth is known."""

import itertools
import math

import numpy as np
import pytest
from scipy import linalg, stats

from transfer.statistics.contrasts import contrast, mcnemar_p, paired_seeds
from transfer.statistics.intervals import Estimate, Scores


def difference(a: np.ndarray, b: np.ndarray, sizes: np.ndarray | None = None, **given) -> Estimate:
    """a - b of cluster means [S, C]; by default every cluster is one sample."""
    sizes = np.ones(a.shape[1]) if sizes is None else sizes
    labels = given.pop("seeds", [range(len(a)), range(len(b))])
    variants, paired = paired_seeds([Scores.of_clusters(one * sizes, sizes) for one in (a, b)], labels or ())
    return contrast(variants, (1, -1), paired=paired, **given)


def counted(more: int, fewer: int, of: int, **given) -> Estimate:
    """`more` samples that only the first variant has right, `fewer` that only the second has; both have the rest."""
    a, b = np.ones((1, of)), np.ones((1, of))
    b[0, :more], a[0, more : more + fewer] = 0, 0
    return difference(a, b, bounds=(0, 1), **given)


def test_over_samples_alone_it_is_the_paired_t_test() -> None:
    a, b = np.random.default_rng(0).random((2, 1, 60))
    theirs, ours = stats.ttest_rel(a[0], b[0]), difference(a, b)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert ours.p == pytest.approx(theirs.pvalue)
    assert ours.seed_error is None
    assert (ours.low, ours.high) == ours.of_models


def test_over_seeds_alone_it_is_the_paired_t_test_or_welchs() -> None:
    effects = np.random.default_rng(1).normal(size=(2, 5))
    a, b = (np.repeat(one[:, None], 200, axis=1) for one in effects)
    for found, theirs in (
        (difference(a, b), stats.ttest_rel(*effects)),
        (difference(a, b, seeds=[range(5), range(5, 10)]), stats.ttest_ind(*effects, equal_var=False)),
    ):
        assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval()))
        assert found.p == pytest.approx(theirs.pvalue)
    unequal = difference(a, b[:3], seeds=None)
    variances = np.array([effects[0].var(ddof=1) / 5, effects[1, :3].var(ddof=1) / 3])
    quantile = np.average(stats.t.ppf(0.975, [4, 2]), weights=variances)  # Cochran and Cox (1950)
    assert unequal.high - unequal.estimate == pytest.approx(quantile * math.sqrt(variances.sum()))
    assert (unequal.p < 0.05) == (unequal.low > 0 or unequal.high < 0)


def test_few_seeds_have_the_wider_of_two_intervals() -> None:
    """Three seeds whose scores differ by less than their test samples alone would make them still have Student's."""
    d = np.random.default_rng(8).normal(0.1, 1, (3, 4000))
    d += np.array([[0.012], [0.0], [-0.012]]) - d.mean(axis=1, keepdims=True) + 0.1
    found, alone = difference(d, np.zeros_like(d)), stats.ttest_1samp(d.mean(axis=1), 0)
    crossed = 1.96 * d.mean(axis=0).std(ddof=1) / math.sqrt(4000)
    assert crossed < found.high - found.estimate == pytest.approx(alone.confidence_interval()[1] - 0.1)
    assert found.p == pytest.approx(alone.pvalue)


def test_samples_and_seeds_are_crossed() -> None:
    """The components of Owen (2007) and Satterthwaite's freedom, written out for one size of clusters."""
    rng = np.random.default_rng(2)
    d = rng.normal(0.3, 2, 40) + rng.normal(0, 0.7, (4, 40)) + rng.normal(0, 0.2, (4, 1))
    found = difference(d, np.zeros_like(d))
    over_clusters = d.mean(axis=0).var(ddof=1) / 40
    rest = d - d.mean(axis=0) - d.mean(axis=1, keepdims=True) + d.mean()
    both = (rest**2).sum() / (39 * 3) / 40 / 4
    over_seeds = d.mean(axis=1).var(ddof=1) / 4 - both
    assert over_seeds > 0
    total = over_clusters + over_seeds
    df = total**2 / (over_clusters**2 / 39 + over_seeds**2 / 3)
    half = stats.t.ppf(0.975, df) * math.sqrt(total)
    assert (found.low, found.high) == pytest.approx((d.mean() - half, d.mean() + half))
    assert (found.cluster_error**2, found.seed_error**2) == pytest.approx((over_clusters, over_seeds))


def test_the_wider_of_two_intervals_holds_at_every_level() -> None:
    """A p value that is then corrected for ten tests has to be that of the wider one at the corrected level."""
    d = np.random.default_rng(2).normal(0.3, 1, 40) + np.array([[0.1], [-0.1]])
    found, alone = difference(d, np.zeros_like(d)), stats.ttest_1samp(d.mean(axis=1), 0)
    over_clusters = d.mean(axis=0).var(ddof=1) / 40
    crossed = math.sqrt(over_clusters + d.mean(axis=1).var(ddof=1) / 2)
    assert found.p == pytest.approx(max(alone.pvalue, 2 * stats.t.sf(found.estimate / crossed, found.errors[0][1])))
    assert found.inner[0] <= alone.confidence_interval(0.9)[0] + 1e-12
    assert found.smallest_difference(tests=10) > 10 * found.smallest_difference() / 2


def test_unequal_clusters_have_cr2_of_ordinary_least_squares() -> None:
    """Bell and McCaffrey's adjustment and degrees of freedom with matrices of all samples, one alike in a cluster."""
    rng = np.random.default_rng(3)
    sizes = np.array([1, 9, 2, 4, 20, 1, 3])
    where, values = np.repeat(np.arange(7), sizes), rng.normal(size=40)
    x = np.ones((40, 1))
    hat, bread = x @ x.T / 40, 1 / 40
    rest, columns = np.eye(40) - hat, []
    for cluster in range(7):
        inside = where == cluster
        adjust = linalg.fractional_matrix_power(np.eye(inside.sum()) - hat[np.ix_(inside, inside)], -0.5)
        columns.append(rest[inside].T @ adjust @ x[inside] * bread)
    g = np.hstack(columns)
    variance = ((values @ g) ** 2).sum()
    alike = g.T @ (where[:, None] == where).astype(float) @ g
    found = contrast([Scores.of_clusters(np.bincount(where, values)[None], sizes)], (1,))
    assert found.cluster_error**2 == pytest.approx(variance)
    assert found.errors[0][1] == pytest.approx(np.trace(alike) ** 2 / (alike**2).sum())
    assert found.effective_clusters == pytest.approx(40**2 / (sizes**2).sum())


@pytest.mark.parametrize("of", [40, 355, 3368])
def test_single_samples_have_mcnemars_exact_p(of: int) -> None:
    for more, fewer in itertools.product(range(0, 24, 3), range(0, 15, 2)):
        exact = stats.binomtest(more, more + fewer).pvalue if more + fewer else 1.0
        found = counted(more, fewer, of)
        assert found.p == pytest.approx(exact), (more, fewer)
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high)
        assert found.method == ("exact" if more + fewer else "rule of three")
    assert counted(5, 0, of).p == pytest.approx(0.0625)


def test_intervals_of_counts_cover_the_truth() -> None:
    for of, more, fewer in ((355, 8, 0), (3368, 3, 3), (30, 12, 4), (10, 5, 5), (100, 60, 20)):
        rates = np.array([more, fewer, of - more - fewer]) / of
        draws, times = np.unique(np.random.default_rng(0).multinomial(of, rates, 1500), axis=0, return_counts=True)
        truth = rates[0] - rates[1]
        ends = [counted(int(a), int(b), of) for a, b, _ in draws]
        covered = [one.low - 1e-12 <= truth <= one.high + 1e-12 for one in ends]
        assert np.average(covered, weights=times) > 0.94, (of, more, fewer)


def test_where_nothing_differs_the_rule_of_three_holds() -> None:
    for of in (5, 30, 355):
        found = counted(0, 0, of)
        assert (found.estimate, found.p, found.discordant) == (0.0, 1.0, 0)
        assert (found.low, found.high) == pytest.approx((0.05 ** (1 / of) - 1, 1 - 0.05 ** (1 / of)))
    same = np.random.default_rng(0).random((3, 200))
    for coefficients in ((1, -1), (1, -1, -1, 1)):
        variants = [Scores.of_clusters(same, np.ones(200))] * len(coefficients)
        found = contrast(variants, coefficients, bounds=(0, 1), paired=True)
        assert (found.estimate, found.p, found.method) == (0.0, 1.0, "rule of three")
        assert found.low == -found.high < 0
    shifted = difference(np.full((2, 8), 0.6), np.full((2, 8), 0.5), bounds=(0, 1))
    assert (shifted.p < 0.05) == (shifted.low > 0)
    with pytest.raises(ValueError, match="the same on every sample and has no stated bounds"):
        difference(same, same)


def test_a_score_keeps_its_bounds() -> None:
    right = np.ones((1, 40))
    right[0, 0] = 0
    exact = contrast([Scores.of_clusters(right, np.ones(40))], (1,), bounds=(0, 1))
    theirs = stats.binomtest(39, 40).proportion_ci(method="exact")
    assert (exact.low, exact.high) == pytest.approx((theirs.low, theirs.high))
    several = contrast([Scores.of_clusters(np.tile(right, (3, 1)) * 2, np.full(40, 2))], (1,), bounds=(0, 1))
    assert several.low < several.estimate < several.high == 1
    assert several.few
    perfect = contrast([Scores.of_clusters(np.full((2, 40), 2.0), np.full(40, 2))], (1,), bounds=(0, 1))
    assert (perfect.low, perfect.high) == (pytest.approx(0.05 ** (1 / 40)), 1.0)


def test_p_and_interval_never_contradict() -> None:
    rng, shown = np.random.default_rng(0), 0
    for _ in range(150):
        clusters = int(rng.choice([5, 10, 30, 400]))
        rates = rng.random(3) ** 3
        kind = rng.choice(3, size=(rng.integers(1, 4), clusters), p=rates / rates.sum())
        sizes = np.ceil(rng.lognormal(0, 1, clusters)) if rng.random() < 0.5 else np.ones(clusters)
        found = difference((kind != 1).astype(float), (kind != 2).astype(float), sizes, bounds=(0, 1))
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high)
        assert -1 <= found.low <= found.estimate <= found.high <= 1
        shown += found.p < 0.05
    assert 20 < shown < 130


def test_seeds_are_paired_by_label_not_by_place() -> None:
    rng = np.random.default_rng(2)
    shared = rng.normal(size=(4, 1))
    a, b = shared + rng.normal(size=(4, 200)), shared + rng.normal(size=(4, 200))
    order = [2, 0, 3, 1]
    straight, shuffled = difference(a, b), difference(a, b[order], seeds=[range(4), order])
    assert straight.low == pytest.approx(shuffled.low)
    assert straight.errors[-1][0] < difference(a, b, seeds=[range(4), range(4, 8)]).errors[-1][0] / 2


def test_an_arm_of_one_seed_borrows() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(3, 1)) + np.zeros((3, 200)), np.zeros((1, 200))
    found = difference(a, b)
    assert found.borrowed
    assert found.seed_error == pytest.approx(a[:, 0].std(ddof=1) * math.sqrt(1 / 3 + 1))
    assert found.errors[0][1] == pytest.approx(2)


def test_an_interaction_is_the_difference_of_differences() -> None:
    rng = np.random.default_rng(7)
    corners = [rng.random((3, 200)) + level for level in (0.9, 0.5, 0.4, 0.3)]
    variants = [Scores.of_clusters(one, np.ones(200)) for one in corners]
    found = contrast(variants, (1, -1, -1, 1), paired=True)
    by_hand = difference((corners[0] - corners[1]) - (corners[2] - corners[3]), np.zeros((3, 200)))
    assert (found.low, found.high, found.p) == pytest.approx((by_hand.low, by_hand.high, by_hand.p))
    assert found.seeds == (3, 3, 3, 3)


def test_images_that_differ_are_told_from_resamples_without_any() -> None:
    """Of 400 images three differ: exp(-3) of the resamples have none of them."""
    rng = np.random.default_rng(6)
    times = rng.multinomial(400, np.full(400, 1 / 400), 500) / 400
    values = np.zeros((1, 400))
    values[0, :3] = 1
    a, b = (Scores.of_resamples(one.mean(axis=1), one @ times.T, 400) for one in (values, 0 * values))
    found = contrast([a, b], (1, -1), bounds=(0, 1))
    assert found.discordant == pytest.approx(3, abs=1)
    assert not found.within(0.5)
    assert contrast([a, a], (1, -1), bounds=(0, 1)).discordant == 0
    everywhere = Scores.of_resamples(np.ones(1), np.ones((1, 500)), 400)
    assert contrast([everywhere, b], (1, -1), bounds=(0, 1)).discordant == 400, "which is not known: all count"


def test_few_clusters_that_disagree_are_called_neither_equivalent_nor_detectable() -> None:
    d = np.zeros((3, 400))
    d[:, :9] = 0.001
    few = difference(d, 0 * d, bounds=(0, 1))
    assert (few.discordant, few.within(0.5), few.smallest_difference()) == (9, False, math.inf)
    d[:, 9] = 0.001
    enough = difference(d, 0 * d, bounds=(0, 1))
    assert enough.within(0.5)
    assert enough.smallest_difference() < 0.01


def test_the_smallest_difference_is_shown_four_times_in_five() -> None:
    effects = np.random.default_rng(8).normal(size=(6, 1)) + np.zeros((6, 50))
    found = difference(effects, 0 * effects)
    shift, limit = found.smallest_difference() / found.errors[0][0], stats.t.ppf(0.975, 5)
    assert stats.nct.sf(limit, 5, shift) == pytest.approx(0.8, abs=0.01)


def test_one_cluster_and_no_numbers_have_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 2 clusters"):
        Scores.of_clusters(np.ones((2, 1)), np.ones(1))
    with pytest.raises(ValueError, match="is not a number"):
        Scores.of_clusters(np.full((1, 4), np.nan), np.ones(4))
    assert mcnemar_p(0, 0) == 1.0
