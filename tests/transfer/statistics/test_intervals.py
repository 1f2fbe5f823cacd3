import pytest
from scipy import stats

from transfer.statistics.intervals import adjusted, wilson


@pytest.mark.parametrize(("successes", "of"), [(0, 3), (1, 3), (3, 3), (5, 10), (17, 400)])
def test_wilson(successes: int, of: int) -> None:
    found = wilson(successes, of)
    theirs = stats.binomtest(successes, of).proportion_ci(method="wilson")
    assert found == pytest.approx((theirs.low, theirs.high))
    assert 0 <= found[0] <= successes / of <= found[1] <= 1
    assert wilson(0, 0) == (0.0, 1.0)


def test_corrections() -> None:
    ps = [0.04, 0.001, 0.03, 0.5, 0.011]
    assert adjusted(ps) == pytest.approx([0.09, 0.005, 0.09, 0.5, 0.044])
    assert adjusted([]) == []
