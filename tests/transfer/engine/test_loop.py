import json
import math
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import Classifier, Points, context, fit_options, loader, tensors
from tests.transfer.core.test_files import files_of_at_most
from tests.transfer.engine.test_late_reading import Breaking
from transfer.core.errors import Stopped, UserError
from transfer.data.loading.loader import pk_batches
from transfer.engine.checkpoint import STATE, History, history
from transfer.engine.context import Context
from transfer.engine.learner import Batch
from transfer.engine.loop import fit
from transfer.engine.step import Stepper


class Interrupted(Classifier):
    """Sends this process a signal in the forward pass of one step."""

    def __init__(self, at: int, dropout: float = 0.2):
        super().__init__(dropout)
        self.at = at

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        if step == self.at:
            self._interrupt()
        return super().forward(batch, step)

    @torch.compiler.disable
    def _interrupt(self) -> None:
        self.at = 0  # a second signal would end the run within the step
        os.kill(os.getpid(), signal.SIGTERM)


def stop(folder: Path, at: int) -> None:
    """Train in `folder` until a signal in a step."""
    with (here := context(folder)).signals(), pytest.raises(Stopped):
        fit(Interrupted(at), loader(), fit_options(), here)


def finish(folder: Path, stops: list[int], options: dict[str, Any]) -> Context:
    """Trains in `folder`, interrupted after each of the steps in `stops`."""
    folder.mkdir()
    options = dict(options)
    precision, workers = options.pop("precision", "fp32"), options.pop("workers", 0)
    for at in [*stops, 0]:
        here = context(folder, precision=precision)
        with here.signals(), pytest.raises(Stopped) if at else nullcontext():
            fit(Interrupted(at), loader(workers=workers), fit_options(**options), here)
        assert not at or torch.load(folder / STATE)["progress"]["step"] == at
    return here


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bf16", "workers": 1},
        {"optimizer": "adamw", "lr": 1e-2, "grad_accum_steps": 2, "clip_grad": 0.5},
        {"warmup_epochs": 1.0, "layer_decay": 1.0, "bias_lr_factor": 2.0},
        {"sam": "sam", "sam_rho": 0.5, "grad_accum_steps": 2},
        {"sam": "asam", "optimizer": "adamw", "lr": 1e-2, "weight_decay_end": 0.4, "clip_grad": 0.1},
        {"trainable": ("head.*", "body.1.*"), "decay_norm": True, "warmup_epochs": 1.0, "warmup_inclusive": True},
        {"epochs": 2.75, "warmup_epochs": 0.5, "workers": 1},
    ],
)
def test_an_interrupted_run_ends_as_an_undisturbed_one_to_the_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    finish(tmp_path / "whole", [], options)
    finish(tmp_path / "pieces", [1, 3, 4, 7, 8], options)
    whole, pieces = (torch.load(tmp_path / name / STATE) for name in ("whole", "pieces"))
    assert all(torch.equal(a, b) for a, b in zip(tensors(whole), tensors(pieces), strict=True))
    assert whole["monitor"] == pieces["monitor"]
    assert history(tmp_path / "whole") == history(tmp_path / "pieces")
    places = [(line["step"], line["epoch"]) for line in history(tmp_path / "whole")]
    assert places == [(step, round(step / 3, 6)) for step in range(1, 1 + round(3 * options.get("epochs", 3)))]


@pytest.mark.parametrize(("epochs", "steps", "last"), [(2.3, 7, 3), (1.5, 5, 2), (0.01, 1, 1), (2.0, 6, 2)])
def test_of_a_fraction_the_last_epoch_is_cut_short(tmp_path: Path, epochs: float, steps: int, last: int) -> None:
    options, validated = fit_options(epochs=epochs, lr=1.0, min_lr=0.0), list[int]()

    def validate(epoch: int) -> dict[str, Any]:
        validated.append(epoch)
        return {}

    fit(Classifier(), loader(), options, here := context(tmp_path), validate)
    assert (here.outcome.step, validated, options.last_epoch) == (steps, [*range(last)], last)
    rates = [math.cos(math.pi * step / 3 / epochs) / 2 + 0.5 for step in range(steps)]
    assert [line["lr"] for line in history(tmp_path)] == pytest.approx(rates)
    assert str(options.epochs) == f"{epochs:g}", "2.0 has the run key of 2"


def test_steps_of_unequal_epochs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One number is said, recorded and trained."""

    def batches(epoch: int) -> list[list[int]]:
        return pk_batches([index // 6 for index in range(24)], p=2, k=2, seed=3, epoch=epoch)

    here = context(tmp_path, progress=True)
    fit(Classifier(), here.loader(Points(), batches, parts=1, epochs=4), fit_options(epochs=4), here)
    said = capfd.readouterr().err
    assert [len(batches(epoch)) for epoch in range(4)] == [6, 5, 6, 5]
    assert "steps per epoch: 5.5 on average, 22 in all, without 2 of 24 training images" in said
    assert (here.details["epoch"]["steps"], here.outcome.step, len(history(tmp_path))) == (5.5, 22, 22)


@pytest.mark.parametrize("each", [False, True])
def test_a_step_clips_the_whole_or_each(each: bool) -> None:
    models = []
    for clip in (None, 0.05):
        models.append(Classifier(dropout=0.0))
        options = fit_options(
            clip_grad=clip, clip_grad_per_param=each and clip is not None, lr=1.0, momentum=0.0, weight_decay=0.0
        )
        models[-1].train()
        Stepper(models[-1], options, context()).step(1, 0.0, next(loader().stream(0, 0, 1))[1])
    start, free, clipped = (dict(model.named_parameters()) for model in (Classifier(), *models))
    updates = {name: start[name] - free[name] for name in start}
    whole = sum(update.norm().item() ** 2 for update in updates.values()) ** 0.5
    for name, update in updates.items():
        length = update.norm().item() if each else whole
        factor = min(1.0, 0.05 / max(length, 1e-9))  # a bias before a batch norm may have no gradient at all
        assert torch.allclose(start[name] - clipped[name], factor * update, atol=1e-5), name


@pytest.mark.nightly
def test_a_compiled_run_is_the_plain_one_with_the_same_names(tmp_path: Path) -> None:
    plain = Classifier(dropout=0.0)
    fit(plain, loader(), fit_options(sam="sam"), context())
    options = fit_options(sam="sam", compile=True)
    for at in (4, 0):
        here = context(tmp_path)
        compiled = Interrupted(at, dropout=0.0)
        with here.signals(), pytest.raises(Stopped) if at else nullcontext():
            fit(compiled, loader(), options, here)
    for name, value in compiled.state_dict().items():
        assert torch.allclose(value, plain.state_dict()[name], atol=1e-4), name


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    found = finish(tmp_path / "run", [], {}).outcome
    assert (found.status, found.step) == ("not_judged", 9)
    before = (tmp_path / "run" / STATE).read_bytes()

    class Forbidden(Classifier):
        def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
            raise AssertionError("trained again")

    assert fit(Forbidden(), loader(), fit_options(), context(tmp_path / "run")) == found
    assert (tmp_path / "run" / STATE).read_bytes() == before


def test_a_breakdown_is_an_outcome_and_stops_the_run(tmp_path: Path) -> None:
    outcome = fit(model := Breaking({4: math.nan}), loader(), fit_options(), context(tmp_path))
    assert (outcome.status, outcome.step) == ("nonfinite", 4)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert len(history(tmp_path)) == 4
    assert fit(Breaking({4: math.nan}), loader(), fit_options(), context(tmp_path)) == outcome


def test_parameters_that_break_in_the_last_step_are_seen() -> None:
    class Late(Classifier):
        def after_step(self, step: int) -> None:
            if step == 9:
                self.head.weight.data[0, 0] = math.inf

    outcome = fit(Late(), loader(), fit_options(), context())
    assert (outcome.status, outcome.step) == ("nonfinite", 9)


def test_a_mask_of_infinities_is_no_broken_statistic() -> None:
    masked = Classifier()
    masked.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    assert fit(masked, loader(), fit_options(), context()).status != "nonfinite"


def test_validation_goes_to_the_history_and_costs_are_counted(tmp_path: Path) -> None:
    here, model, modes = context(tmp_path), Classifier(), list[bool]()
    model.body[1].train = lambda mode=True: modes.append(mode) or nn.Module.train(model.body[1], mode)  # type: ignore
    fit(model, loader(), fit_options(epochs=2), here, validate=lambda epoch: model.eval() and {"accuracy": epoch / 10})
    assert modes == [True, False, True, False, True, False], "set where they change, not in each step"
    lines = [line for line in history(tmp_path) if "accuracy" in line]
    assert [(line["step"], line["accuracy"]) for line in lines] == [(3, 0.0), (6, 0.1)]
    assert here.cost.images == 48
    assert 0 <= here.cost.wait_seconds <= here.cost.train_seconds


def test_an_observer_sees_each_epoch_and_its_notes_before_an_interruption_are_kept_once(tmp_path: Path) -> None:
    for at in (5, 0):
        here = context(tmp_path, notes=["of the setup"])
        here.observer = lambda learner, here=here: lambda epoch: here.note(f"epoch {epoch}") or {"seen": epoch}
        with here.signals(), pytest.raises(Stopped) if at else nullcontext():
            fit(Interrupted(at), loader(), fit_options(), here)
    assert here.notes == ["of the setup", "epoch 0", "epoch 1", "epoch 2"]
    assert [line["seen"] for line in history(tmp_path, "seen")] == [0, 1, 2]


def test_a_foreign_state_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    theirs, ours = ({"options": {"lr": lr, "epochs": 3}} for lr in (0.1, 0.2))
    fit(Classifier(), loader(), fit_options(), context(tmp_path, run_key="other", about=theirs))
    with pytest.raises(UserError, match=r"belongs to another run.*: lr 0\.1 there, 0\.2 here; delete it"):
        fit(Classifier(), loader(), fit_options(), context(tmp_path, about=ours))


def test_a_state_of_another_version_or_model_is_refused(tmp_path: Path) -> None:
    stop(tmp_path, 4)
    state = torch.load(tmp_path / STATE)
    torch.save(state | {"schema": 2}, tmp_path / STATE)
    with pytest.raises(UserError, match=r"state\.pt: not a readable .*`schema` is 2.*delete it"):
        fit(Classifier(), loader(), fit_options(), context(tmp_path))
    state["stepper"]["learner"]["head.bias"] = torch.zeros(3)
    torch.save(state, tmp_path / STATE)
    with pytest.raises(RuntimeError, match=r"head\.bias"):
        fit(Classifier(), loader(), fit_options(), context(tmp_path))


def test_a_full_disk_is_said_and_keeps_the_last_state(tmp_path: Path) -> None:
    stop(tmp_path, 4)
    kept = (tmp_path / STATE).read_bytes()
    with files_of_at_most(len(kept) // 2), pytest.raises(UserError, match=r"state\.pt: cannot .*is the disk full\?"):
        fit(Interrupted(0), loader(), fit_options(), context(tmp_path))
    assert (tmp_path / STATE).read_bytes() == kept
    assert not list(tmp_path.glob(".*.tmp"))
    fit(Interrupted(0), loader(), fit_options(), context(tmp_path))
    finish(tmp_path / "whole", [], {})
    assert history(tmp_path) == history(tmp_path / "whole")


def test_a_signal_in_a_validation_saves_the_state_and_the_validation_is_done_on_return(tmp_path: Path) -> None:
    interrupted = []

    def validate(epoch: int) -> dict[str, float]:
        if epoch == 1 and not interrupted:
            interrupted.append(epoch)
            raise Stopped
        return {"accuracy": epoch / 10}

    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
    with pytest.raises(Stopped):
        fit(Classifier(), loader(), fit_options(), context(tmp_path / "a"), validate=validate)
    fit(Classifier(), loader(), fit_options(), context(tmp_path / "a"), validate=validate)
    fit(Classifier(), loader(), fit_options(), context(tmp_path / "b"), validate=lambda epoch: {"accuracy": epoch / 10})
    assert history(tmp_path / "a") == history(tmp_path / "b")


def test_a_history_holds_json_alone(tmp_path: Path) -> None:
    written = History(tmp_path)
    written.add({"step": 1, "loss": math.nan, "layers": [{"place": "stem", "norm": math.inf, "rank": 2.0}]})
    written.flush()
    (line,) = (tmp_path / "history.jsonl").read_text().splitlines()
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found == {"step": 1, "loss": None, "layers": [{"place": "stem", "norm": None, "rank": 2.0}]}


@pytest.mark.parametrize("one_size", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
def test_convolutions_are_chosen_by_measuring_where_that_pays(one_size: bool, deterministic: bool) -> None:
    class Looking(Classifier):
        def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
            seen.add(torch.backends.cudnn.benchmark)
            return super().forward(batch, step)

    seen: set[bool] = set()
    Looking.one_size = one_size
    torch.use_deterministic_algorithms(deterministic)
    try:
        fit(Looking(), loader(), fit_options(epochs=1), context())
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == {one_size and not deterministic}
    assert not torch.backends.cudnn.benchmark
