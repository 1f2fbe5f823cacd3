"""SAM against a plain statement: loops over parameters, gradients from autograd.grad, no scaler, no buffers kept."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.support import Classifier, context, fit_options
from transfer.core.seeding import seed_torch
from transfer.engine.learner import Batch, Learner
from transfer.engine.optim import perturbed
from transfer.engine.step import Stepper

STEP, RATE = 7, 0.5
Weights = dict[str, Tensor]
SGD: dict[str, Any] = {"lr": RATE, "momentum": 0.0, "weight_decay": 0.0}


def points(size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(size, 2, generator=generator), torch.arange(size) % 2


def gradients(model: Learner, weights: Weights, parts: list[Batch], precision: str = "fp32", rank: int = 0) -> Weights:
    """The gradient at `weights` of the mean loss over micro-batches, each with its random numbers."""
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    total = torch.zeros(())
    for index, part in enumerate(parts):
        seed_torch(0, STEP, index, rank)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with context(precision=precision).autocast():
            total = total + functional_call(model, {**weights, **buffers}, (part, STEP))["loss"] / len(parts)
    found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(weights, found) if gradient is not None}


def climbed(
    weights: dict[str, Tensor], slope: dict[str, Tensor], rho: float, kind: str
) -> tuple[dict[str, Tensor], float]:
    """w + rho g / ||g||, or w + rho w^2 g / || |w| g ||, and the norm."""
    squares = 0.0
    for name, gradient in slope.items():
        for w, g in zip(weights[name].flatten().tolist(), gradient.flatten().tolist()):
            squares += g**2 if kind == "sam" else (w * g) ** 2
    moved = dict(weights)
    for name, gradient in slope.items():
        factor = 1.0 if kind == "sam" else weights[name] ** 2
        moved[name] = weights[name] + rho * factor * gradient / (math.sqrt(squares) + 1e-12)
    return moved, math.sqrt(squares)


def parameters(model: nn.Module) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def stepper(model: Learner, precision: str = "fp32", **options: Any) -> Stepper:
    model.train()
    return Stepper(model, fit_options(precision=precision, **options), context(precision=precision))


@pytest.mark.parametrize("kind", ["sam", "asam"])
@pytest.mark.parametrize(
    ("precision", "tolerance", "clipped"),
    [("fp32", 1e-6, False), ("bf16", 1e-3, False), ("fp16", 1e-3, False), ("fp32", 1e-6, True)],
)
def test_a_step_is_the_plain_statement(kind: str, precision: str, tolerance: float, clipped: bool) -> None:
    """Clipping acts on the second gradient alone."""
    model, batch = Classifier(), points()
    before, pieces = parameters(model), [(x, y) for x, y in zip(*(part.chunk(2) for part in batch))]
    slope = gradients(model, before, pieces, precision)
    moved, norm = climbed(before, slope, 0.5, kind)
    expected = gradients(model, moved, pieces, precision)
    assert not torch.allclose(expected["head.weight"], slope["head.weight"], atol=10 * tolerance)

    length = math.sqrt(sum(float(gradient.square().sum()) for gradient in expected.values()))
    given = {"grad_accum_steps": 2, "sam": kind, "sam_rho": 0.5, "clip_grad": length / 10 if clipped else None}
    trained = stepper(model, precision, **given, **SGD)
    if precision == "fp16":
        trained.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    stats, skipped, _ = trained.step(STEP, 0.0, batch).read()
    assert not skipped
    found = [stats["sam_norm"], stats["grad_norm"]]
    assert found == pytest.approx([norm, length], rel=1e-5 if precision == "fp32" else 1e-2)
    for name, weight in model.named_parameters():
        moved_by = RATE * expected[name] / (10 if clipped else 1)
        assert torch.allclose(weight, before[name] - moved_by, atol=tolerance), name


@pytest.mark.parametrize("parts", [1, 2])
def test_loss_and_buffers_are_those_of_the_first_pass(parts: int) -> None:
    model = Classifier()
    once, batch = copy.deepcopy(model), points()
    losses = []
    for index, part in enumerate(zip(*(piece.chunk(parts) for piece in batch))):
        seed_torch(0, STEP, index, 0)
        losses.append(once(part, STEP)["loss"].item())
    stats, _, _ = stepper(model, grad_accum_steps=parts, sam="sam", sam_rho=2.0, **SGD).step(STEP, 0.0, batch).read()
    assert stats["loss"] == pytest.approx(sum(losses) / parts, rel=1e-6)
    for (name, buffer), (_, expected) in zip(model.named_buffers(), once.named_buffers(), strict=True):
        assert torch.equal(buffer, expected), name


def test_weights_come_back_to_the_bit() -> None:
    model = nn.Linear(50, 50)
    model.weight.data *= torch.logspace(-20, 20, 50)  # where w + e - e would not be w
    before = parameters(model)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with perturbed(list(model.parameters()), 1e3, adaptive=False):
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not torch.equal(model.weight, before["weight"])
        assert not torch.equal(model.weight - (model.weight - before["weight"]), before["weight"])
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


class Linear(Learner):
    """A loss whose gradient does not depend on the weights, multiplied by `factors` call after call."""

    def __init__(self, factors: list[float]):
        super().__init__()
        self.weight, self.factors = nn.Parameter(torch.tensor([1.0, 2.0])), list(factors)

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        return {"loss": ((self.weight * batch) * self.factors.pop(0)).nan_to_num().sum()}


@pytest.mark.parametrize("factors", [[math.inf, 1.0], [1.0, math.inf]])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_an_overflow_in_either_pass_leaves_the_step_out(factors: list[float], precision: str) -> None:
    model = Linear([1.0, 1.0, *factors, 1.0, 1.0])
    trained = stepper(model, precision, sam="sam", **SGD)
    numbers, skipped, _ = trained.step(1, 0.0, torch.ones(2)).read()
    assert not skipped
    before = parameters(model)
    numbers, skipped, _ = trained.step(2, 0.0, torch.ones(2)).read()
    assert torch.equal(model.weight, before["weight"])
    assert not all(math.isfinite(value) for value in numbers.values())
    assert skipped == (precision == "fp16")
    if skipped:
        assert numbers["scale"] == 2.0**15
        numbers, skipped, _ = trained.step(3, 0.0, torch.ones(2)).read()
        assert not skipped
        assert torch.allclose(model.weight, before["weight"] - RATE)
