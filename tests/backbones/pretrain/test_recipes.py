"""The shipped recipes of supervised pretraining are what their sources say."""

import math
from typing import Any

import pytest

from tests.support import command
from transfer.engine.schedule import Schedule


def options(recipe: str) -> Any:
    return command(recipe, "--backbone", "tiny").options


def test_deit_holds_its_rate_for_an_epoch_one_behind() -> None:
    recipe = options("deit")
    schedule = Schedule(recipe)
    for epoch in range(300):
        behind = max(epoch - 1, 0)
        expected = 1e-6 + behind * (1e-3 - 1e-6) / 5
        if behind >= 5:
            expected = 1e-5 + (1e-3 - 1e-5) * (1 + math.cos(math.pi * behind / 300)) / 2
        assert schedule.rate(schedule.clock(epoch, 3, 8), recipe.lr) == pytest.approx(expected, abs=1e-12)


def test_volo_cools_down_behind_three_hundred_epochs() -> None:
    recipe = options("volo")
    schedule = Schedule(recipe)
    rates = [schedule.rate(schedule.clock(epoch, 0, 1), recipe.lr) for epoch in range(recipe.epochs)]
    assert rates[299] > rates[300]
    assert rates[300:] == pytest.approx([1e-5] * 10)
    assert rates[150] == pytest.approx((1.6e-3 + 1e-5) / 2)


@pytest.mark.parametrize(("recipe", "images"), [("bigvision_i1k", 1_268_355), ("bigvision_i21k", 12_692_121)])
def test_big_vision_warms_up_for_ten_thousand_steps(recipe: str, images: int) -> None:
    found = options(recipe)
    assert found.batch_size == 4096
    assert found.warmup_epochs * (images // found.batch_size) == pytest.approx(10_000, rel=1e-3)
    assert (found.loss, found.clip_grad, found.decay_scale) == ("sigmoid", 1.0, "schedule")
