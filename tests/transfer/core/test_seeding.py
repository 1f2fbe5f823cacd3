"""Draws are a function of their key, and the generators go on afterwards as if nothing had been drawn."""

import random
from contextlib import nullcontext, suppress

import numpy as np
import pytest
import torch

from transfer.core.seeding import restored_generators, seeded
from transfer.data.loading.loader import RunLoader


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.normal()), float(torch.rand(1))  # noqa: NPY002


def seed_all() -> None:
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)


def drawn_around(block) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Draw once before the block and once after it; numpy then has a second normal number in store for the latter."""
    seed_all()
    first = draws()
    block()
    return first, draws()


def test_draws_are_a_function_of_the_key() -> None:
    with seeded(1, 2, 3):
        one = draws()
    with seeded(1, 2, 3):
        assert draws() == one
    for other in [(1, 2), (1, 2, 4), (12, 3), (-1, 2, 3), (2**70, 2, 3)]:
        with seeded(*other):
            assert all(a != b for a, b in zip(draws(), one, strict=True))


@pytest.mark.parametrize("around", [nullcontext, restored_generators])
def test_blocks_leave_no_trace_and_draw_the_same_within_one_that_restores(around) -> None:
    alone = []
    for key in range(3):
        with seeded(key):
            alone.append(draws())
    together = []

    def several() -> None:
        with around():
            for key in range(3):
                with suppress(KeyError), seeded(key):
                    together.append(draws())
                    raise KeyError

    assert drawn_around(several) == drawn_around(lambda: None)
    assert together == alone


class _Drawn(torch.utils.data.Dataset):
    def __getitem__(self, key: tuple[int, int, int]) -> float:
        with seeded(*key):
            return sum(draws())


def test_a_batch_is_loaded_without_a_trace() -> None:
    def load() -> None:
        batches.extend(batch for _, batch in RunLoader(_Drawn(), lambda _: [[0, 1], [2, 3]]).stream(0, 0, 2))

    def start_alone() -> None:  # torch's loader draws a seed for its workers
        torch.empty((), dtype=torch.int64).random_()

    batches: list[torch.Tensor] = []
    assert drawn_around(load) == drawn_around(start_alone)
    assert len(torch.cat(batches).unique()) == 8
