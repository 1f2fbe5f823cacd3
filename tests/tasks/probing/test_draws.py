import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from tasks.probing.draws import smallest_difference, spread


def test_spread_of_draws() -> None:
    found = spread([0.5, 0.6, 0.7])
    assert found["mean"] == pytest.approx(0.6)
    assert found["variance"] == pytest.approx(0.01)
    assert found["standard_error"] == pytest.approx(0.1 / np.sqrt(3))
    assert found["smallest_difference"]["paired"] == pytest.approx(0.1 * smallest_difference(3, correlation=0.8))
    assert found["smallest_difference"]["independent"] == pytest.approx(0.1 * smallest_difference(3))


def test_one_draw_has_no_spread() -> None:
    assert spread([0.5]) == {"draws": [0.5], "mean": 0.5, "standard_error": None, "variance": None}


def test_equal_draws_have_none_either() -> None:
    found = spread([0.5, 0.5])
    assert found["variance"] == 0
    assert found["smallest_difference"] is None


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("correlation", [None, 0.0, 0.8])
def test_the_t_test_finds_the_smallest_difference_four_times_in_five(n: int, correlation: float | None) -> None:
    random = np.random.default_rng(0)
    trials, difference = 20_000, smallest_difference(n, correlation=correlation)
    shared = random.normal(size=(n, trials)) * np.sqrt(correlation or 0.0)
    a, b = (shared + random.normal(size=(n, trials)) * np.sqrt(1 - (correlation or 0.0)) for _ in range(2))
    test = ttest_ind if correlation is None else ttest_rel
    found = (test(a + difference, b).pvalue < 0.05).mean()
    assert found == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / trials))
