"""Contrasts of systems that seldom disagree, against exact tests and formulas stated anew."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from tasks.probing.draws import smallest_shift
from transfer.statistics.cluster_scores import ClusterScores
from transfer.statistics.contrasts import contrast
from transfer.statistics.intervals import Estimate, cluster_draws
from transfer.statistics.sample_and_seed_variance import _freedom_of_sum
from transfer.statistics.sign_flips import _saddlepoint, sign_flip_p


def paired(*answers: np.ndarray, sizes: np.ndarray | None = None, draws: int = 0, **given) -> Estimate:
    """The contrast of systems' answers [S, C], means over the samples of a cluster; by default one less the other."""
    clusters = answers[0].shape[1]
    shares = (np.ones(clusters) if sizes is None else sizes) / (clusters if sizes is None else sizes.sum())
    parts = [ClusterScores.of_sums(one * shares, np.tile(shares, (len(one), 1))) for one in answers]
    scores = [one.sums.sum(axis=1) for one in parts]
    drawn = [np.empty((len(one), 0)) for one in answers]
    if draws:
        sums, counts = (np.concatenate([getattr(one, name) for one in parts]).T for name in ("sums", "shares"))
        found = cluster_draws(sums, counts, draws=draws).T
        drawn = np.split(found, np.cumsum([len(one) for one in answers])[:-1])
    coefficients = given.pop("coefficients", (1, -1))
    given = {"bounds": (0.0, 1.0), **given}
    return contrast(scores, drawn, coefficients, clusters=clusters, parts=parts, **given)


def counts(more: int, fewer: int, clusters: int, **given) -> Estimate:
    """Of clusters of one sample: `more` on which the first alone is right, `fewer` on which the other is."""
    a, b = np.ones((1, clusters)), np.ones((1, clusters))
    b[0, :more], a[0, more : more + fewer] = 0, 0
    return paired(a, b, **given)


@pytest.mark.parametrize("clusters", [40, 355, 3368])
def test_single_samples_have_mcnemars_exact_p(clusters: int) -> None:
    for more, fewer in itertools.product(range(0, 24, 3), range(0, 15, 2)):
        exact = stats.binomtest(more, more + fewer).pvalue if more + fewer else 1.0
        assert counts(more, fewer, clusters).p == pytest.approx(exact), (more, fewer)


@pytest.mark.parametrize(("clusters", "p"), [(2, 0.5), (3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_clusters_that_all_differ_by_the_same_have_the_sign_test(clusters: int, p: float) -> None:
    found = paired(np.full((1, clusters), 0.6), np.full((1, clusters), 0.5))
    assert found.p == pytest.approx(p)
    assert (found.low <= 0) == (p > 0.05)
    assert found.high - found.low > 0.05


def test_equal_systems_leave_open_what_as_many_samples_do() -> None:
    for clusters in (5, 30, 355, 3368):
        found = counts(0, 0, clusters)
        z = stats.norm.ppf(0.975) ** 2
        assert (found.estimate, found.p) == (0.0, 1.0)
        assert found.high == pytest.approx(z / (clusters + z), rel=0.001)  # Wilson's interval of a rate of 0
        assert found.low == pytest.approx(-found.high)
    unknown = counts(0, 0, 30, bounds=(-math.inf, math.inf))
    assert (unknown.low, unknown.high, unknown.p) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_p_and_interval_never_contradict(level: float) -> None:
    rng = np.random.default_rng(0)
    shown = 0
    for _ in range(150):
        clusters = int(rng.choice([5, 10, 30, 400]))
        rates = rng.random(3) ** 3
        kind = rng.choice(3, size=(rng.integers(1, 4), clusters), p=rates / rates.sum())
        sizes = np.ceil(rng.lognormal(0, 1, clusters)) if rng.random() < 0.5 else None
        found = paired((kind != 1).astype(float), (kind != 2).astype(float), sizes=sizes, draws=200, level=level)
        assert (found.p < 1 - level) == (not found.low <= 0 <= found.high)
        assert found.low <= found.estimate <= found.high
        shown += found.p < 1 - level
    assert 20 < shown < 130


def test_under_no_difference_few_verdicts_are_given() -> None:
    """Over all pairs of counts: with 1, 2, 3 or 5 discordant samples on the average, at most one in twenty."""
    shown = {pair: counts(*pair, 355).shown for pair in itertools.product(range(16), repeat=2)}
    for mean in (1, 2, 3, 5):
        chance = stats.poisson.pmf(np.arange(16), mean / 2)
        assert sum(chance[more] * chance[fewer] for (more, fewer), one in shown.items() if one) < 0.02


@pytest.mark.parametrize("mean", [1, 2, 3, 5, 8, 15])
def test_one_sided_effects_are_covered_and_seldom_called_equivalent_to_nothing(mean: int) -> None:
    chance, covered, equivalent = stats.poisson.pmf(np.arange(45), mean), 0.0, 0.0
    for more in range(45):
        found = counts(more, 0, 3368)
        covered += chance[more] * (found.low <= mean / 3368 <= found.high)
        equivalent += chance[more] * found.within(mean / 3368)
    assert covered > 0.94
    assert equivalent < 0.05


@pytest.mark.parametrize(("more", "fewer"), [(12, 9), (20, 8), (7, 7), (30, 14)])
def test_the_interval_is_tangos(more: int, fewer: int) -> None:
    """The score interval, its likelihood maximised numerically."""
    n = 500

    def distance(difference: float) -> float:
        def lacking(q: float) -> float:
            p = q + difference
            return -(more * math.log(p) + fewer * math.log(q) + (n - more - fewer) * math.log(1 - p - q))

        low, high = max(0.0, -difference) + 1e-12, (1 - abs(difference)) / 2 + max(0.0, -difference) - 1e-12
        q = optimize.minimize_scalar(lacking, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
        return abs(more - fewer - n * difference) / math.sqrt(n * (2 * q + difference - difference**2)) - 1.959964

    found, middle = counts(more, fewer, n), (more - fewer) / n
    assert found.low == pytest.approx(optimize.brentq(distance, middle - 0.1, middle), abs=0.02 / n * 5)
    assert found.high == pytest.approx(optimize.brentq(distance, middle, middle + 0.1), abs=0.02 / n * 5)


def test_where_many_disagree_it_is_the_bootstrap() -> None:
    rng = np.random.default_rng(1)
    a = (rng.random((1, 2000)) < 0.62).astype(float)
    b = (rng.random((1, 2000)) < 0.58).astype(float)
    found = paired(a, b, draws=4000)
    sums = np.concatenate([a, b]).T
    drawn = cluster_draws(sums, np.ones_like(sums), draws=4000).T
    plain = contrast([a.mean(axis=1), b.mean(axis=1)], [drawn[:1], drawn[1:]], (1, -1), clusters=2000)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=0.05 * plain.error)
    assert found.p == pytest.approx(plain.p, rel=0.1)
    assert found.smallest_difference() == pytest.approx(plain.smallest_difference(), rel=0.03)


def test_nothing_jumps_as_more_disagree() -> None:
    lengths, ps, smallest = [], [], []
    for number in range(30, 240, 2):
        found = counts(number // 2 + 8, number // 2 - 8, 2000, draws=4000)
        lengths.append((found.high - found.low) / math.sqrt(number))
        ps.append(stats.norm.isf(found.p / 2) * math.sqrt(number))
        smallest.append(found.smallest_difference() / math.sqrt(number))
    for values in (lengths, ps, smallest):
        assert np.abs(np.diff(np.log(values))).max() < 0.05
    assert lengths[0] / lengths[-1] < 1.1


@pytest.mark.parametrize("size", [1, 6, 12])
def test_sign_flips_of_unlike_parts_are_enumerated(size: int) -> None:
    rng = np.random.default_rng(size)
    for parts in (rng.normal(0.4, 1, size), rng.integers(1, 5, size) * rng.choice([-1, 1], size) / 7):
        sums = np.array([np.dot(signs, parts) for signs in itertools.product((1, -1), repeat=size)])
        exact = (np.abs(sums) >= abs(parts.sum()) - 1e-12).mean()
        assert sign_flip_p(np.append(parts, np.zeros(9))) == pytest.approx(exact)


@pytest.mark.parametrize("shift", [0.3, 0.6, 1.0])
def test_the_saddlepoint_is_near_the_enumeration(shift: float) -> None:
    parts = np.random.default_rng(3).exponential(size=18) * np.where(np.arange(18) % 3, 1, -1) + shift
    sums = np.zeros(1)
    for one in np.abs(parts):
        sums = np.concatenate([sums - one, sums + one])
    exact = (np.abs(sums) >= abs(parts.sum()) - 1e-12).mean()
    assert sign_flip_p(parts) == pytest.approx(exact, rel=0.04)
    most = np.abs(parts).max()
    assert _saddlepoint(np.abs(parts) / most, abs(parts.sum()) / most) == sign_flip_p(parts)


def test_an_interaction_flips_the_contrast_of_each_cluster() -> None:
    rng = np.random.default_rng(4)
    corners = [(rng.random((1, 400)) < 0.985).astype(float) for _ in range(4)]
    a, b, c, d = (one[0] for one in corners)
    found = paired(*corners, coefficients=(1, -1, -1, 1))
    assert found.p == pytest.approx(sign_flip_p((a - b - c + d) / 400))
    assert 0 < np.count_nonzero(a - b - c + d) < 40


def test_seeds_that_are_equal_by_luck_prove_nothing() -> None:
    """Three seeds, each right on one more image, and not on the same: no spread between them, and exactly p = 0.25."""
    a, b = np.ones((3, 300)), np.ones((3, 300))
    for seed in range(3):
        b[seed, 10 * seed] = 0
    found = paired(a, b, seeds=[range(3), range(3)])
    assert found.p == pytest.approx(0.25)
    assert found.low < 0 < found.high
    same = np.ones((3, 300))
    same[:, 7] = 0
    assert paired(a, same, seeds=[range(3), range(3)]).p == 1.0


@pytest.mark.parametrize("right", [0, 1, 3, 29, 30])
def test_a_score_near_its_bounds_has_clopper_and_pearsons_interval(right: int) -> None:
    answers = (np.arange(30) < right).astype(float)[None]
    found = paired(answers, coefficients=(1,))
    exact = stats.binomtest(right, 30).proportion_ci()
    # with Student's quantile instead of the normal one the effective samples are a little fewer
    assert found.low == pytest.approx(exact.low, abs=0.012)
    assert (found.low > 0) == (found.p < 0.05) == (right > 0)
    assert found.high == pytest.approx(exact.high, abs=0.012)
    many = paired(np.repeat(answers, 100, axis=1)[:, :3000], coefficients=(1,))
    assert 0 <= many.low <= many.estimate + 1e-12
    assert many.estimate - 1e-12 <= many.high <= 1
    assert many.high - many.low < found.high - found.low


def test_a_score_of_two_seeds_is_as_wide_as_these_vary() -> None:
    answers = (np.arange(300) >= np.array([[2], [14]])).astype(float)
    found = paired(answers, coefficients=(1,))
    two = stats.t.interval(0.95, 1, answers.mean(), stats.sem(answers.mean(axis=1)))
    assert found.low < answers.mean() - 0.5 * (answers.mean() - two[0])
    assert found.high == 1.0


@pytest.mark.parametrize(("few", "many", "ratio"), [(3, 3, 10), (3, 5, 4), (3, 10, 2), (2, 5, 4)])
def test_unequal_spreads_of_few_seeds_are_covered(few: int, many: int, ratio: int) -> None:
    """Of Welch's problem, the side of fewer seeds varying more: 3 standard errors below 94 %."""
    rng, draws = np.random.default_rng(8), 20_000
    a, b = ratio * rng.normal(size=(draws, few)), rng.normal(size=(draws, many))
    variances = np.stack([a.var(axis=1, ddof=1) / few, b.var(axis=1, ddof=1) / many], axis=1)
    freedom = np.array([_freedom_of_sum(row, (few - 1, many - 1), (few, many)) for row in variances])
    error = np.sqrt(variances.sum(axis=1))
    held = (np.abs(a.mean(axis=1) - b.mean(axis=1)) < stats.t.ppf(0.975, freedom) * error).mean()
    assert 0.935 < held < 0.985


def test_samples_of_one_cluster_count_less() -> None:
    answers = (np.arange(60) >= 2).astype(float)[None]
    apart = paired(np.repeat(answers, 5, axis=1), coefficients=(1,))
    together = paired(answers, sizes=np.full(60, 5.0), coefficients=(1,))
    assert together.low == pytest.approx(paired(answers, coefficients=(1,)).low)
    assert together.low < apart.low - 0.02


@pytest.mark.parametrize(("noise", "most"), [(0, 355), (0, 10), (3, 30), (5, 355), (30, 3368)])
def test_the_smallest_surplus_is_shown_four_times_in_five(noise: int, most: int) -> None:
    """Counts of samples on either side drawn again, and the exact test of each."""
    surplus = smallest_shift(noise, most)
    rng, rate = np.random.default_rng(5), noise / most
    either = [surplus / most + (1 - surplus / most) * rate / 2, (1 - surplus / most) * rate / 2]
    pairs, times = np.unique(
        rng.multinomial(most, [*either, 1 - sum(either)], size=4000)[:, :2], axis=0, return_counts=True
    )
    shown = [stats.binomtest(more, more + fewer).pvalue < 0.05 if more + fewer else False for more, fewer in pairs]
    assert times[shown].sum() / 4000 == pytest.approx(0.8, abs=0.025)


def test_five_clusters_show_nothing() -> None:
    assert smallest_shift(0, 5) == math.inf
    assert counts(5, 0, 5).smallest_difference() == math.inf


def test_a_seed_without_partner_is_left_out_of_the_mean_and_still_varies() -> None:
    rng = np.random.default_rng(6)
    shared = rng.normal(size=(3, 1))
    a, b = shared + rng.normal(1, 0.1, (3, 200)), shared[:2] + rng.normal(0, 0.1, (2, 200))
    found = paired(a, b, seeds=[[0, 1, 2], [0, 1]], draws=200, bounds=(-math.inf, math.inf))
    assert found.estimate == pytest.approx(a[:2].mean() - b.mean())
    assert (found.seeds, found.paired) == ((2, 2), False)
    alone = paired(a[:2], b, seeds=[[0, 1], [0, 1]], draws=200, bounds=(-math.inf, math.inf))
    assert found.estimate == pytest.approx(alone.estimate)
    levels = np.var(a.mean(axis=1), ddof=1) + np.var(b.mean(axis=1), ddof=1)
    assert found.seed_error == pytest.approx(math.sqrt(levels / 2), rel=0.02)  # means of two, spreads of all
    three = paired(
        a, np.concatenate([b, b]), seeds=[[0, 1, 2], [2, 1, 5, 0]], draws=200, bounds=(-math.inf, math.inf)
    )  # fmt: skip
    assert (three.seeds, three.paired) == ((3, 3), True)


def test_what_seeds_share_beyond_their_difference_does_not_end_in_no_number() -> None:
    """Both systems right on the same samples, other ones with each seed: alone they vary, their difference does not."""
    chance = np.random.default_rng(0).random((3, 300))
    found = paired((chance < 0.56).astype(float), (chance[:2] < 0.5).astype(float), seeds=[range(3), range(2)])
    assert 1 <= found.freedom <= 3
    assert found.low < found.estimate < found.high
    assert 0 < found.p < 1


def test_what_is_no_number_is_refused() -> None:
    broken = np.ones((1, 9))
    broken[0, 3] = math.nan
    with pytest.raises(ValueError, match="not a number"):
        paired(broken, np.ones((1, 9)))
    with pytest.raises(ValueError, match="at least 2 clusters"):
        paired(np.ones((1, 1)), np.zeros((1, 1)))
