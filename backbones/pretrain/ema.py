"""Exponential moving average of a model's weights."""

import copy
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage(nn.Module):
    """A second model, always in eval mode, whose state follows that of the trained one.

    average <- decay * average + (1 - decay) * value, from the initial weights on, for every floating-point entry of
    the state: parameters and batch-norm statistics alike, as timm's `ModelEma` does, which DeiT uses. (It truncates
    averages of counters to integers; here counters are copied.)

    As average + (1 - decay) * (value - average): decay and 1 - decay, each rounded to float32, do not sum to 1, which
    at 0.99996 moves the average of a constant by 2e-5, and that of noisy weights by 4e-4, relative to float64; so it is
    exact, and 3e-6. What moves less than 6e-8 / (1 - decay) of its value in all is lost to float32 either way.

    As a submodule of a learner it is saved and resumed with it; nothing in it is trained.

    Args:
        model: what is averaged; the average starts as a copy.
        decay: in [0, 1).
    """

    def __init__(self, model: nn.Module, decay: float):
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self.train(False)

    def train(self, mode: bool = True) -> "WeightAverage":
        """Stay in eval mode."""
        return super().train(False)

    def forward(self, *inputs: Any) -> Any:
        """Return the averaged model's outputs."""
        return self.model(*inputs)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards `model`, of the same structure."""
        averages: list[Tensor] = []
        values: list[Tensor] = []
        for average, value in zip(self.model.state_dict().values(), model.state_dict().values(), strict=True):
            if average.is_floating_point():
                averages.append(average)
                values.append(value)
            else:
                average.copy_(value)
        torch._foreach_lerp_(averages, values, 1 - self.decay)
