import pytest
from scipy import stats

from transfer.statistics.intervals import adjusted, wilson


@pytest.mark.parametrize(("successes", "of"), [(0, 3), (1, 3), (3, 3), (5, 10), (17, 400)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson(successes: int, of: int, level: float) -> None:
    found = wilson(successes, of, level)
    theirs = stats.binomtest(successes, of).proportion_ci(level, method="wilson")
    assert found == pytest.approx((theirs.low, theirs.high))
    assert 0 <= found[0] <= successes / of <= found[1] <= 1


def test_wilson_of_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="not a rate"):
        wilson(4, 3)


def test_corrections() -> None:
    ps = [0.04, 0.001, 0.03, 0.5, 0.011]
    assert adjusted(ps, "holm") == pytest.approx([0.09, 0.005, 0.09, 0.5, 0.044])
    assert adjusted(ps, "bh") == pytest.approx(stats.false_discovery_control(ps))
    assert adjusted(ps, "none") == ps
    assert adjusted([]) == []
