"""The covering holds every pair that a row can hold."""

from itertools import combinations, product

import pytest

from tests.interactions.covering import Choice, cover, pairs_of
from tests.interactions.options import CONFLICTS, DEAR, FACTORS, apart

SMALL = {"a": ("1", "2", "3"), "b": ("1", "2"), "c": ("1", "2", "3"), "d": ("1", "2")}
APART = {(("a", "3"), ("b", "2")), (("a", "3"), ("c", "1")), (("b", "1"), ("c", "3")), (("c", "2"), ("d", "2"))}


def never(one: Choice, two: Choice) -> bool:
    return False


def kept_apart(one: Choice, two: Choice) -> bool:
    return (one, two) in APART or (two, one) in APART


@pytest.mark.parametrize("rule", [never, kept_apart])
@pytest.mark.parametrize("seed", range(3))
def test_every_pair_that_some_row_holds_is_covered(rule, seed):
    every = [dict(zip(SMALL, values)) for values in product(*SMALL.values())]
    possible = [row for row in every if not any(rule(*pair) for pair in combinations(row.items(), 2))]
    rows = cover(SMALL, rule, seed)
    assert set().union(*map(pairs_of, rows)) == set().union(*map(pairs_of, possible))
    assert all(row in possible for row in rows)
    assert len(rows) < len(possible)


def test_a_seed_gives_the_same_rows_and_another_one_others():
    assert cover(SMALL, kept_apart, 1) == cover(SMALL, kept_apart, 1)
    assert cover(SMALL, kept_apart, 1) != cover(SMALL, kept_apart, 2)


def test_dear_choices_are_taken_for_missing_pairs_only():
    dear = [row for row in cover(FACTORS, apart, 0, DEAR) if row["ranks"] == "2"]
    assert len(dear) < len([row for row in cover(FACTORS, apart, 0) if row["ranks"] == "2"])


def test_every_conflict_is_one_of_known_choices():
    for conflict in CONFLICTS:
        for factor, values in (conflict.one, conflict.two):
            assert values, conflict
            assert {*values} <= {*FACTORS[factor]}, conflict
