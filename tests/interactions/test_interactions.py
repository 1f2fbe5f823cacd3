"""Every pair of choices in some command, each judged by what must hold for all; `python -m tests.interactions` goes on.

One process runs them all, and one pair of processes those of two ranks.
"""

from collections.abc import Iterator

import pytest

from tests.interactions.__main__ import refused
from tests.interactions.bench import Bench
from tests.interactions.covering import Row, cover
from tests.interactions.options import CONFLICTS, DEAR, FEWER, USUAL, apart
from tests.interactions.places import Places

SEED = 0
ROWS = cover(FEWER, apart, SEED, DEAR)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("interactions")
    with Bench(root / "runs", Places(root / "places")) as made:
        yield made


def named(row: Row) -> str:
    """What of a row is not the usual."""
    return " ".join([row["work"], *(value for name, value in row.items() if name != "work" and value != USUAL[name])])


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_pair_of_choices(row: Row, bench: Bench) -> None:
    assert bench.tried(row, anew=ROWS.index(row) % 5 == 0) == []


def test_what_cannot_stand_together_is_said(bench: Bench) -> None:
    tries = list(refused(bench))
    assert len(tries) == sum(one.says is not None for one in CONFLICTS)
    assert [found for found in tries if found] == []
