import math
from typing import Any

import pytest
import torch
from torch import nn

from backbones.engine.optim import Schedule, build_optimizer, parameter_groups
from backbones.errors import WrongWords
from tests.support import fit_options


def transreid_rate(epoch: int, lr: float) -> float:
    """TransReID's scheduler, called with 1..120 at the start of each epoch."""
    if epoch < 5:
        return 0.01 * lr + epoch * (lr - 0.01 * lr) / 5
    return 0.002 * lr + 0.5 * (lr - 0.002 * lr) * (1 + math.cos(math.pi * epoch / 120))


def test_the_baseline_schedule_is_held_for_an_epoch_and_read_at_its_end() -> None:
    options = fit_options(
        epochs=120, lr=0.008, schedule="epoch", schedule_offset=1, warmup_epochs=5, warmup_from=0.01, cosine_to=0.002
    )
    schedule = Schedule(options)
    for epoch in range(120):
        for index in (0, 7):
            rate = schedule.rate(schedule.clock(epoch, index, 8), options.lr)
            assert rate == pytest.approx(transreid_rate(epoch + 1, 0.008), abs=1e-12)


def dino_schedule(base: float, final: float, epochs: int, per_epoch: int, warm_epochs: int) -> list[float]:
    """DINO's cosine_scheduler: linspace from 0, then a cosine over the remaining iterations."""
    warm = warm_epochs * per_epoch
    rest = epochs * per_epoch - warm
    ramp = [base * i / (warm - 1) for i in range(warm)]
    return ramp + [final + 0.5 * (base - final) * (1 + math.cos(math.pi * i / rest)) for i in range(rest)]


def test_the_step_schedule_with_prefix_is_dinos_cosine() -> None:
    options = fit_options(epochs=10, lr=1e-3, warmup_epochs=2, warmup_prefix=True, cosine_to=1e-6, ends="absolute")
    schedule = Schedule(options)
    expected = dino_schedule(1e-3, 1e-6, 10, 5, 2)
    for step in range(10, 50):
        assert schedule.rate(schedule.clock(step // 5, step % 5, 5), 1e-3) == pytest.approx(expected[step], abs=1e-12)


def test_ends_are_the_same_for_groups_with_another_peak_and_scale_with_layer_decay() -> None:
    schedule = Schedule(fit_options(epochs=10, lr=1.0, warmup_epochs=2, warmup_from=0.5, cosine_to=0.1))
    parameter = nn.Parameter(torch.zeros(1))
    groups = [{"params": [parameter], "peak": 2.0, "scale": 0.25, "lr": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule.apply(optimizer, 0.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25 * 0.5)
    schedule.apply(optimizer, 10.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25 * 0.1)


def test_groups_give_every_parameter_its_rate_and_decay() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    model[2].weight.requires_grad_(False)
    options = fit_options(lr=1.0, bias_factor=2.0, weight_decay=0.1, no_decay=("1d",), layer_decay=0.5)
    groups = parameter_groups(model.named_parameters(), options, lambda name: int(name[0]), 2)
    found = {id(p): (g["peak"], g["scale"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert found == {
        id(model[0].weight): (1.0, 0.25, 0.1),
        id(model[0].bias): (2.0, 0.25, 0.0),
        id(model[1].weight): (1.0, 0.5, 0.0),
        id(model[1].bias): (2.0, 0.5, 0.0),
        id(model[2].bias): (2.0, 1.0, 0.0),
    }
    named = parameter_groups(model.named_parameters(), fit_options(weight_decay=0.1, no_decay=("0.*",)))
    assert {id(p) for g in named if g["weight_decay"] == 0 for p in g["params"]} == {
        id(p) for p in model[0].parameters()
    }


def test_sgd_is_the_plain_statement() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    options = fit_options(lr=0.1, momentum=0.9, weight_decay=0.01, warmup_epochs=0)
    optimizer = build_optimizer(parameter_groups([("weight", weight)], options), options)
    value, velocity = 1.0, 0.0
    for step in range(5):
        Schedule(options).apply(optimizer, step * 0.5)
        rate = 0.05 * (1 + math.cos(math.pi * step * 0.5 / 3))
        weight.grad = weight.detach() * 3
        optimizer.step()
        velocity = 0.9 * velocity + 3 * value + 0.01 * value
        value -= rate * velocity
        assert weight.item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"lr": -1.0}, {"lr": math.nan}, {"layer_decay": 0.0}, {"clip": 0.0}, {"accumulate": 0},
     {"warmup_epochs": 3.0, "warmup_prefix": True}, {"trainable": ()}, {"weight_decay_to": -1.0}, {"clip_each": True},
     {"warmup_inclusive": True, "schedule": "epoch"}, {"sam_sync": True}, {"sam_rho": 0.0, "sam": "asam"},
     {"decay_scale": "schedule"}, {"decay_scale": "schedule", "optimizer": "adamw", "lr": 0.0}],
)  # fmt: skip
def test_impossible_options_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongWords, match=f"--{next(iter(wrong))}".replace("_", "-")):
        fit_options(**wrong)
