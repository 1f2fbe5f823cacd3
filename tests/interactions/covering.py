"""A small set of rows that holds every allowed pair of values of any two factors (all-pairs testing, greedily)."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations

Factors = Mapping[str, Sequence[str]]
Choice = tuple[str, str]
"""A factor and its value."""
Pair = frozenset[Choice]
Apart = Callable[[Choice, Choice], bool]
"""Whether two choices cannot stand in one row."""
Row = dict[str, str]


def allowed_pairs(factors: Factors, apart: Apart) -> set[Pair]:
    """Every pair of choices of two factors that may stand in one row."""
    choices = [(name, value) for name, values in factors.items() for value in values]
    return {frozenset((one, two)) for one, two in combinations(choices, 2) if one[0] != two[0] and not apart(one, two)}


def pairs_of(row: Row) -> set[Pair]:
    """The pairs that a row holds."""
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def cover(factors: Factors, apart: Apart, seed: int, dear: Collection[Choice] = ()) -> list[Row]:
    """Rows in which every pair appears that a row can hold at all; the same for the same seed.

    Args:
        dear: choices that cost much, taken only where a row needs them for a pair that is still missing.
    """
    chance = random.Random(seed)
    missing = allowed_pairs(factors, apart)
    rows = []
    while missing:
        first = chance.choice(sorted(missing, key=sorted))
        row = _filled(dict(sorted(first)), factors, apart, missing, chance, dear)
        if row is None:  # each may stand with the other, but both leave nothing for a third factor
            missing.discard(first)
            continue
        missing -= pairs_of(row)
        rows.append({name: row[name] for name in factors})
    return rows


def _filled(
    row: Row, factors: Factors, apart: Apart, missing: set[Pair], chance: random.Random, dear: Collection[Choice]
) -> Row | None:
    """The row with a value for every factor, each chosen for the missing pairs it adds; None where there is none."""
    left = {
        name: [value for value in values if not any(apart((name, value), other) for other in row.items())]
        for name, values in factors.items()
        if name not in row
    }
    if not left:
        return row
    if not all(left.values()):
        return None
    name = chance.choice([name for name in left if len(left[name]) == 1] or sorted(left))

    def rank(value: str) -> tuple[int, bool, float]:
        gained = sum(frozenset(((name, value), other)) in missing for other in row.items())
        return -gained, (name, value) in dear, chance.random()

    for value in sorted(left[name], key=rank):
        found = _filled({**row, name: value}, factors, apart, missing, chance, dear)
        if found is not None:
            return found
    return None
