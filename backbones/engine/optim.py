"""Parameter groups, optimisers and the learning-rate schedule."""

import fnmatch
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from backbones.engine.options import FitOptions


def parameter_groups(
    named: Iterable[tuple[str, nn.Parameter]],
    options: FitOptions,
    layer_of: Callable[[str], int] | None = None,
    last_layer: int = 0,
) -> list[dict[str, Any]]:
    """Parameters that share a rate and a decay, as groups for torch's optimisers.

    Each group holds `peak` (its rate after warm-up) and `scale` (its layer decay, a factor of the whole schedule).

    Args:
        named: names and parameters; those without gradient are left out.
        layer_of: name -> layer number, for layer decay; parameters of `last_layer` keep the full rate.
    """
    groups: dict[tuple[float, float, float], dict[str, Any]] = {}
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        is_bias = name.rpartition(".")[2] == "bias"
        peak = options.lr * (options.bias_factor if is_bias else 1.0)
        scale = options.layer_decay ** (last_layer - layer_of(name)) if layer_of else 1.0
        decay = 0.0 if _without_decay(name, parameter, options.no_decay) else options.weight_decay
        key = (peak, scale, decay)
        group = groups.setdefault(key, {"params": [], "peak": peak, "scale": scale, "lr": 0.0, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


def _without_decay(name: str, parameter: nn.Parameter, patterns: tuple[str, ...]) -> bool:
    if "1d" in patterns and (parameter.ndim <= 1 or name.endswith(".bias")):
        return True
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def build_optimizer(
    groups: list[dict[str, Any]], options: FitOptions, *, scaled: bool = False
) -> torch.optim.Optimizer:
    """SGD or AdamW over the groups, in torch's fused form.

    Args:
        scaled: an fp16 scaler drives the steps. The fused form would have to skip overflows itself, which it does not
            on CPUs, so it is not used then.
    """
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, fused=not scaled)
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.999), fused=not scaled)


class Schedule:
    """Linear warm-up, then cosine, as a function of the fractional epoch.

    warm-up, t < w:  start + (peak - start) t / w
    then:            end + (peak - end) (1 + cos(pi t / T)) / 2,   t and T less w with `warmup_prefix`

    `start` and `end` are the same for all groups; a group's `scale` multiplies the whole.
    """

    def __init__(self, options: FitOptions):
        self.options = options
        unit = options.lr if options.ends == "factor" else 1.0
        self.start, self.end = options.warmup_from * unit, options.cosine_to * unit

    def clock(self, epoch: int, index: int, length: int) -> float:
        """The fractional epoch at which step `index` of `length` in `epoch` (all from 0) reads the schedule."""
        if self.options.schedule == "epoch":
            return float(max(epoch + self.options.schedule_offset, 0))
        return epoch + index / length

    def rate(self, time: float, peak: float) -> float:
        """The rate at fractional epoch `time` of a group that peaks at `peak`."""
        warm, total = self.options.warmup_epochs, float(self.options.epochs)
        if time < warm:
            return self.start + (peak - self.start) * time / warm
        if self.options.warmup_prefix:
            time, total = time - warm, total - warm
        return self.end + (peak - self.end) * (1 + math.cos(math.pi * min(time / total, 1.0))) / 2

    def apply(self, optimizer: torch.optim.Optimizer, time: float) -> float:
        """Sets every group's rate; returns that of a group with the full peak."""
        for group in optimizer.param_groups:
            group["lr"] = group["scale"] * self.rate(time, group["peak"])
        return self.rate(time, self.options.lr)
