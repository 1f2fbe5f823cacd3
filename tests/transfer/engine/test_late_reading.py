"""What the host reads a step late, as on GPUs, leaves the same history, outcome and state as what it reads at once."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import context, fit_options, loader, stopped_after, tensors
from tests.transfer.engine.test_skipped_steps import Averaged
from transfer.core.errors import Stopped
from transfer.engine.checkpoint import STATE, history
from transfer.engine.learner import Batch
from transfer.engine.loop import _Run, fit
from transfer.engine.outcome import Outcome
from transfer.engine.step import Stepper

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
