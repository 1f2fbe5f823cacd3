import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from timm.layers import RmsNorm
from torch import nn

from backbones.attention import HeadNorm
from tests.support import fit_options
from transfer.core.errors import UsageError
from transfer.engine.dist import SyncBatchNorm
from transfer.engine.optim import build_optimizer, freeze_others, parameter_groups
from transfer.engine.schedule import Schedule, cosine


def transreid_rate(epoch: int, lr: float) -> float:
    """TransReID's scheduler, called with 1..120 at the start of each epoch."""
    if epoch < 5:
        return 0.01 * lr + epoch * (lr - 0.01 * lr) / 5
    return 0.002 * lr + 0.5 * (lr - 0.002 * lr) * (1 + math.cos(math.pi * epoch / 120))


def test_the_baseline_schedule_is_held_for_an_epoch_and_read_at_its_end() -> None:
    options = fit_options(
        epochs=120, lr=0.008, schedule="epoch", schedule_offset=1, warmup_epochs=5, warmup_lr_factor=0.01,
        min_lr_factor=0.002,
    )  # fmt: skip
    schedule = Schedule(options)
    for epoch in range(120):
        for index in (0, 7):
            rate = schedule.rate(schedule.clock(epoch, index, 8), options.lr)
            assert rate == pytest.approx(transreid_rate(epoch + 1, 0.008), abs=1e-12)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_cool_down_follows_the_schedule_without_it(prefix: bool) -> None:
    given = {"lr": 1.0, "warmup_epochs": 2, "warmup_prefix": prefix, "min_lr_factor": 0.1, "weight_decay_end": 0.5}
    plain, cooled = (Schedule(fit_options(**given, epochs=n, cooldown_epochs=n - 8)) for n in (8, 11))
    for time in np.linspace(0, 11, 45):
        assert cooled.rate(time, 1.0) == pytest.approx(plain.rate(min(time, 8), 1.0), abs=1e-12)
        assert cooled.decay(time) == pytest.approx(plain.decay(min(time, 8)), abs=1e-12)
    assert cooled.rate(9, 1.0) == pytest.approx(0.1)


def test_milestones_take_the_place_of_the_cosine() -> None:
    schedule = Schedule(fit_options(lr=2.0, epochs=12, warmup_epochs=0.5, warmup_lr_factor=0.1, milestones=(8, 10.5)))
    rates = [schedule.rate(time, 2.0) for time in (0, 0.25, 0.5, 7.9, 8, 10.4, 10.5, 12)]
    assert rates == pytest.approx([0.2, 1.1, 2.0, 2.0, 0.2, 0.2, 0.02, 0.02])


def dino_schedule(base: float, final: float, epochs: int, per_epoch: int, warm_epochs: int = 0) -> list[float]:
    """DINO's cosine_scheduler: linspace from 0, then a cosine over the remaining iterations."""
    warm = warm_epochs * per_epoch
    rest = epochs * per_epoch - warm
    ramp = [float(value) for value in np.linspace(0, base, warm)]
    return ramp + [final + 0.5 * (base - final) * (1 + math.cos(math.pi * i / rest)) for i in range(rest)]


@pytest.mark.parametrize("warm", [0, 1, 2, 9])
def test_rate_and_decay_are_dinos_in_every_step(warm: int) -> None:
    options = fit_options(
        epochs=10, lr=1e-3, warmup_epochs=warm, warmup_prefix=True, warmup_inclusive=True, min_lr=1e-6,
        weight_decay=0.04, weight_decay_end=0.4, optimizer="adamw", no_decay=("1d",),
    )  # fmt: skip
    model, schedule = nn.Linear(2, 2), Schedule(options)
    optimizer = build_optimizer(parameter_groups(model, options), options)
    rates, decays = dino_schedule(1e-3, 1e-6, 10, 5, warm), dino_schedule(0.04, 0.4, 10, 5)
    for step in range(50):
        schedule.apply(optimizer, schedule.clock(step // 5, step % 5, 5), 5)
        weight, bias = optimizer.param_groups
        assert weight["lr"] == bias["lr"] == pytest.approx(rates[step], abs=1e-12)
        assert weight["weight_decay"] == pytest.approx(decays[step], abs=1e-12)
        assert bias["weight_decay"] == 0


def test_an_inclusive_warm_up_reaches_the_peak_in_its_last_step() -> None:
    schedule = Schedule(fit_options(lr=1.0, warmup_epochs=1.5, warmup_inclusive=True, warmup_lr_factor=0.5))
    rates = [schedule.rate(schedule.clock(i // 4, i % 4, 4), 1.0, 4) for i in range(6)]
    assert rates == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    with pytest.raises(ValueError, match="length"):
        schedule.rate(0.5, 1.0)


def test_ends_are_the_same_for_groups_with_another_peak_and_scale_with_layer_decay() -> None:
    schedule = Schedule(fit_options(epochs=10, lr=1.0, warmup_epochs=2, warmup_lr_factor=0.5, min_lr_factor=0.1))
    parameter = nn.Parameter(torch.zeros(1))
    groups = [{"params": [parameter], "peak": 2.0, "scale": 0.25, "decay": 1.0, "lr": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule.apply(optimizer, 0.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25 * 0.5)
    schedule.apply(optimizer, 10.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25 * 0.1)


@dataclass
class Layers:
    """What layer decay sees of a backbone."""

    layers: dict[str, int]
    depth: int

    def layer_of(self, parameter_name: str) -> int:
        return self.layers[parameter_name.partition(".")[0]]


def test_layer_decay_without_layers_is_refused() -> None:
    model = nn.Linear(2, 2)
    for backbone in (None, Layers({}, depth=0)):
        with pytest.raises(UsageError, match=r"--layer-decay 0\.5 has no effect"):
            parameter_groups(model, fit_options(layer_decay=0.5), backbone)
    assert parameter_groups(model, fit_options(layer_decay=0.5), Layers({}, depth=1))[0]["scale"] == 1.0


def test_groups_give_every_parameter_its_rate_and_decay() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    model[2].weight.requires_grad_(False)
    options = fit_options(lr=1.0, bias_lr_factor=2.0, weight_decay=0.1, no_decay=("1d",), layer_decay=0.5)
    groups = parameter_groups(model, options, Layers({"0": 0, "1": 1, "2": 2}, depth=1), inside="")
    found = {id(p): (g["peak"], g["scale"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert found == {
        id(model[0].weight): (1.0, 0.25, 0.1),
        id(model[0].bias): (2.0, 0.25, 0.0),
        id(model[1].weight): (1.0, 0.5, 0.0),
        id(model[1].bias): (2.0, 0.5, 0.0),
        id(model[2].bias): (2.0, 1.0, 0.0),
    }


def test_a_pattern_means_names_or_norms_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    every = {"0", "1", "2.0", "2.1"}
    for pattern, spared in {"0.*": {"0"}, "norm:*": {"1", "2.1"}, "norm:2.*": {"2.1"}, "*": every}.items():
        groups = parameter_groups(model, fit_options(weight_decay=0.1, no_decay=(pattern,)))
        free = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
        assert {name.rpartition(".")[0] for name, p in model.named_parameters() if id(p) in free} == spared


def test_scales_and_shifts_of_norms_decay_on_request_whatever_they_are_called() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), SyncBatchNorm(4))
            self.scaling, self.per_head, self.theirs = nn.LayerNorm(4), HeadNorm(2), RmsNorm(4)
            self.norm, self.gamma = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    model = Odd()
    options = fit_options(weight_decay=0.1, no_decay=("1d", "theirs.*"), decay_norm=True)
    decaying = {id(p) for group in parameter_groups(model, options) if group["weight_decay"] for p in group["params"]}
    assert {name for name, p in model.named_parameters() if id(p) in decaying} == {
        "stem.0.weight", "stem.1.weight", "stem.1.bias", "stem.2.weight", "stem.2.bias", "scaling.weight",
        "scaling.bias", "per_head.weight", "norm.weight",
    }  # fmt: skip


def test_only_what_is_named_trains() -> None:
    model = nn.ModuleDict({"stem": nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), "head": nn.Linear(4, 2)})
    model["head"].bias.requires_grad_(False)
    freeze_others(model, ("stem.1.*", "head.*"))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"stem.1.weight", "stem.1.bias", "head.weight"}
    groups = parameter_groups(model, fit_options())
    assert sum(len(group["params"]) for group in groups) == 3
    for pattern, near in (("haed.weight", r"head\.weight"), ("hed", r"\*head\*")):
        with pytest.raises(UsageError, match=rf"{pattern!r}.*did you mean '{near}'"):
            freeze_others(model, ("stem.*", pattern))
    with pytest.raises(UsageError, match=r"'head\.bias'"):
        freeze_others(model, ("head.bias",))


@pytest.mark.parametrize("decay_to", [None, 0.1])
def test_decay_by_the_schedule_is_big_visions(decay_to: float | None) -> None:
    """update = -sched (lr adam + wd w): the decay sees the schedule, not the peak rate, with any layer's factor."""
    model = nn.Module()
    weight = model.weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    options = fit_options(
        optimizer="adamw", lr=0.01, weight_decay=0.3, weight_decay_end=decay_to, decay_scale="schedule",
        layer_decay=0.5, warmup_epochs=1.0, no_decay=(),
    )  # fmt: skip
    optimizer = build_optimizer(parameter_groups(model, options, Layers({"weight": 1}, depth=1), inside=""), options)
    schedule = Schedule(options)
    value = weight.detach().double()
    first, second = torch.zeros(2), torch.zeros(2)
    for step in range(12):
        time = schedule.clock(step // 4, step % 4, 4)
        share = step / 4 if step < 4 else 0.5 * (1 + math.cos(math.pi * time / 3))
        decay = 0.3 if decay_to is None else decay_to + 0.5 * (0.3 - decay_to) * (1 + math.cos(math.pi * time / 3))
        gradient = torch.sin(value) + 2
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        adam = (first / (1 - 0.9 ** (step + 1))) / ((second / (1 - 0.999 ** (step + 1))) ** 0.5 + 1e-8)
        weight.grad = torch.sin(weight.detach()) + 2
        schedule.apply(optimizer, time)
        optimizer.step()
        value = value - 0.5 * share * (0.01 * adam + decay * value)
        assert torch.allclose(weight.detach().double(), value, rtol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": -1}, {"lr": -1.0}, {"lr": math.nan}, {"layer_decay": 0.0}, {"clip_grad": 0.0}, {"grad_accum_steps": 0},
     {"warmup_epochs": 3.0, "warmup_prefix": True}, {"cooldown_epochs": 3.0}, {"cooldown_epochs": -1.0},
     {"milestones": (3.0,)}, {"milestones": (0.0,)}, {"milestones": (2.0, 1.0)}, {"milestones": (1.0, 1.0)},
     {"warmup_epochs": 2.0, "cooldown_epochs": 1.0, "warmup_prefix": True},
     {"trainable": ()}, {"weight_decay_end": -1.0},
     {"warmup_inclusive": True, "schedule": "epoch"}, {"sam_rho": 0.0, "sam": "asam"},
     {"warmup_epochs": 1.0, "schedule": "epoch"},
     {"warmup_epochs": 0.5, "schedule": "epoch", "warmup_lr_factor": 1e-6},
     {"warmup_epochs": 2.0, "schedule": "epoch", "schedule_offset": -1},
     {"min_lr": 0.0, "schedule": "epoch", "schedule_offset": 1}, {"cooldown_epochs": 1.0},
     {"decay_scale": "schedule"}, {"lr": 0.0},
     {"decay_scale": "schedule", "optimizer": "adamw", "bias_lr_factor": 0.0}],
)  # fmt: skip
def test_impossible_options_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"--{next(iter(wrong))}".replace("_", "-")):
        fit_options(**wrong)


def test_a_step_at_a_border_is_behind_it_however_its_fraction_rounds() -> None:
    """2 + 3 / 7 and the number nearest to 17 / 7 differ in their last bit."""
    missed = 0
    for length in (3, 7, 49, 309, 1251):
        for epoch in (1, 7, 57):
            for index in range(1, length, max(length // 7, 1)):
                border = (epoch * length + index) / length
                given = {"epochs": 60, "lr": 1.0, "weight_decay": 0.0}
                falls, warms = fit_options(**given, milestones=(border,)), fit_options(**given, warmup_epochs=border)
                at = Schedule(falls).clock(epoch, index, length)
                missed += at < border
                assert Schedule(falls).rate(at, 1.0) == pytest.approx(0.1)
                assert Schedule(falls).rate(epoch + (index - 1) / length, 1.0) == 1.0
                assert Schedule(warms).rate(at, 1.0) == pytest.approx(cosine(1.0, 0.0, at / 60), rel=1e-9)
    assert missed  # so that the comparison of floats alone would not do


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_scaler_on_a_cpu_leaves_the_form_to_torch(name: str) -> None:
    options, model = fit_options(optimizer=name), torch.nn.Linear(2, 2)
    groups = parameter_groups(model, options)
    assert build_optimizer(groups, options).defaults["fused"]
    assert build_optimizer(groups, options, scaled=True).defaults["fused"] is None  # False has foreach off as well
