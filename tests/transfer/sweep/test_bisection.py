"""The search of the largest stable rate, on problems whose limit is known."""

import math
import random
from collections.abc import Callable

import pytest

from transfer.sweep.bisection import Search, SearchResult


def search_largest_stable(search: Search, is_stable: Callable[[float, int], bool]) -> SearchResult:
    """Run a whole search; `is_stable` returns whether training is stable at a rate with a seed."""
    plan = search.plan()
    try:
        rate, seed = next(plan)
        while True:
            rate, seed = plan.send(is_stable(rate, seed))
    except StopIteration as end:
        result: SearchResult = end.value
        return result


def test_the_limit_is_found_within_the_ratio_and_the_budget() -> None:
    for problem in range(300):
        limit = 10 ** random.Random(problem).uniform(-5, 1)
        search = Search(1e-5, 10, seeds=(0, 1, 2), budget=12, ratio=1.5)
        found = search_largest_stable(search, lambda rate, seed, limit=limit: rate < limit)
        assert len(found.probes) <= 12, limit
        assert len(found.brackets) == 3, limit
        for bracket in found.brackets:
            assert bracket.low < limit <= bracket.high
            assert bracket.high / bracket.low <= 1.5, limit
        assert 1 / 1.5 <= found.estimate / limit <= 1.5
        assert found.violations == (), limit


def test_a_range_without_a_limit_in_it_is_said_so() -> None:
    always = search_largest_stable(Search(1e-3, 1, seeds=(0,), budget=12), lambda rate, seed: True)
    assert always.brackets[0].low == 1
    assert always.brackets[0].high == math.inf
    never = search_largest_stable(Search(1e-3, 1, seeds=(0,), budget=12), lambda rate, seed: False)
    assert (never.brackets[0].low, never.brackets[0].high) == (0, 1e-3)
    assert math.isnan(never.estimate)
    assert math.isnan(always.estimate)


def test_what_contradicts_a_single_limit_is_reported() -> None:
    search = Search(0.01, 100, seeds=(0, 1), budget=12)
    # training with seed 1 fails at the rate that is stable with seed 0, and is stable at the larger one
    found = search_largest_stable(search, lambda rate, seed: rate < 1 if seed == 0 else rate >= 1)
    assert any("seed 1" in text and "is stable" in text for text in found.violations), found.probes


@pytest.mark.parametrize("width", [4, 10])
@pytest.mark.parametrize("place", range(0, 9, 2))
def test_a_stable_region_between_rates_that_break_is_found_to_its_upper_edge(place: int, width: float) -> None:
    """As where too small a rate ends at chance, and too large a one does not train either."""
    lowest = 1e-4 * (1e4 / width) ** (place / 8)
    search = Search(1e-4, 1, seeds=(0, 1, 2), budget=12)
    found = search_largest_stable(search, lambda rate, seed: lowest <= rate < width * lowest)
    assert len(found.probes) <= 12
    bracket = found.brackets[0]
    assert lowest <= bracket.low < width * lowest <= bracket.high
    assert bracket.high / bracket.low <= 2
