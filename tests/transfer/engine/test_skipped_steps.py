"""A step that the fp16 scaler leaves out moves nothing: no parameter, no average of any kind, no statistic, no mean."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones.pretrain.supervised.training import WeightAverage
from tests.support import Classifier, context, fit_options, tensors
from transfer.engine.learner import Batch
from transfer.engine.step import Stepper


class Averaged(Classifier):
    """A net with batch norm and a moving average of its weights; `factor` multiplies the loss."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.average, self.factor = WeightAverage(nn.ModuleList([self.body, self.head]), 0.9), 1.0

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        found = super().forward(batch, step)
        return {**found, "loss": found["loss"] * self.factor}

    def after_step(self, step: int) -> None:
        self.average.update(nn.ModuleList([self.body, self.head]))


def state(trained: Stepper) -> list[Tensor]:
    """Everything that a step can move, but for the scaler itself."""
    found = trained.state()
    return [tensor.clone() for tensor in tensors([found["learner"], found["optimizer"]])]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after))


def batch(offset: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 2, generator=generator) + offset, torch.arange(8) % 2


@pytest.mark.parametrize("given", [{}, {"sam": "sam", "sam_rho": 0.05}, {"grad_accum_steps": 2}])
@pytest.mark.parametrize("broken", ["gradient", "statistics"])
def test_nothing_moves(broken: str, given: dict[str, Any]) -> None:
    """`gradient`: the scaled loss overflows; `statistics`: the inputs do, and batch norm's running mean with them."""
    model = Averaged()
    trained = Stepper(model, fit_options(**given), context(precision="fp16"))
    assert not trained.step(1, 0.0, batch()).read()[1]
    before = state(trained)
    model.factor = 1e37 if broken == "gradient" else 1.0
    numbers, skipped, _ = trained.step(2, 0.0, batch(7e4 if broken == "statistics" else 0.0)).read()
    assert skipped
    assert math.isfinite(numbers["loss"]) == (broken == "gradient")
    assert same(before, state(trained))
    model.factor = 1.0
    assert not trained.step(3, 0.0, batch()).read()[1]
    after = state(trained)
    assert not same(before, after)
    assert all(tensor.isfinite().all() for tensor in after if tensor.is_floating_point())
