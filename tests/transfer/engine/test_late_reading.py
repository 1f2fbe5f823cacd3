"""What the fp16 scaler leaves out moves nothing; what is read a step late, as on GPUs, is what is read at once."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones.pretrain.supervised.training import WeightAverage
from tests.support import Classifier, context, fit_options, loader, stopped_after, tensors
from transfer.core.errors import Stopped
from transfer.engine.checkpoint import STATE, history
from transfer.engine.learner import Batch
from transfer.engine.loop import _Run, fit
from transfer.engine.outcome import Outcome
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


settle = _Run.settle


class Breaking(Averaged):
    """Multiplies the loss of some steps."""

    def __init__(self, factors: dict[int, float]):
        super().__init__()
        self.factors = factors

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        self.factor = self.factors.get(step, 1.0)
        return super().forward(batch, step)


def trained(
    folder: Path, given: dict[str, Any], factors: dict[int, float], stop: int | None
) -> tuple[Outcome, list[dict[str, Any]], dict[str, Any]]:
    """Outcome, history and state of nine steps, interrupted after one of them; a validation follows every third."""
    folder.mkdir()
    for at in ([stop] if stop else []) + [0]:
        here = context(folder, precision=given.get("precision", "fp32"))
        with stopped_after(at), suppress(Stopped):
            outcome = fit(Breaking(factors), loader(), fit_options(**given), here, lambda epoch: {"accuracy": epoch})
    return outcome, history(folder), torch.load(folder / STATE)


@pytest.mark.parametrize("stop", [None, 4])
@pytest.mark.parametrize(
    ("given", "factors", "broken"),
    [
        ({"optimizer": "adamw", "lr": 1e-2, "clip_grad": 0.5}, {}, None),
        ({"sam": "asam", "grad_accum_steps": 2}, {5: torch.nan}, 5),
        ({"clip_grad": 0.1, "clip_grad_per_param": True}, {1: torch.nan}, 1),
        ({"optimizer": "adamw"}, {6: torch.inf}, 6),
        ({"precision": "fp16"}, {3: 1e37, 4: 1e37, 7: 1e37}, None),
        ({"precision": "fp16"}, {3: 1e37, 4: 1e37, 5: 1e37}, 5),
    ],
)
def test_nothing_but_the_moment_differs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    factors: dict[int, float],
    broken: int | None,
    stop: int | None,
) -> None:
    monkeypatch.setattr("transfer.engine.outcome.SCALER_SKIPS", 3)
    outcome, lines, state = trained(tmp_path / "at once", given, factors, None)
    monkeypatch.setattr(Stepper, "late", True)
    late = trained(tmp_path / "late", given, factors, stop)
    assert (outcome.status, outcome.step) == (("nonfinite", broken) if broken else ("not_judged", 9))
    assert (outcome, lines) == late[:2]
    assert state["progress"] == late[2]["progress"]
    assert state["monitor"] == late[2]["monitor"]
    names = [name for name, _ in Averaged().named_parameters()]  # a step that breaks has moved the buffers at once
    for found in (state["stepper"], late[2]["stepper"]):
        found["learner"] = [found["learner"][name] for name in (names if broken else found["learner"])]
    pairs = zip(tensors(state["stepper"]), tensors(late[2]["stepper"]), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_all_ranks_read_in_the_same_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their clocks say: one that had read a signal would leave the others in a collective."""
    found = []
    monkeypatch.setattr(Stepper, "late", True)
    monkeypatch.setattr(_Run, "settle", lambda run, late=False: found[-1].append(late) or settle(run, late=late))
    for number, seconds in enumerate((0.0, 1e9)):
        found.append([])
        (tmp_path / str(number)).mkdir()
        fit(Breaking({}), loader(), fit_options(), context(tmp_path / str(number), checkpoint_seconds=seconds))
    assert found[0] == found[1] == [*[True, True, False] * 3, False]
