"""`--epochs 0` scores the weights of a run as they are: to the bit as the run did."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import transfer

SMOKE: dict[str, Any] = {"smoke": True, "threads": 1, "progress": False, "backbone": "tiny", "attention": "relu"}
TRAINED: dict[str, dict[str, Any]] = {
    "reid": {"epochs": 2, "warmup_epochs": 0},
    "linear": {"epochs": 2},
    "detect": {"epochs": 1, "warmup_epochs": 0, "batch_size": 2},
}
SCORED: dict[str, dict[str, Any]] = {"reid": {}, "linear": {}, "detect": {"subset": 6, "size": (96, 128)}}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(out: Path) -> Callable[[str], transfer.Run]:
    """The run of a task, trained when it is first asked for."""
    return cache(lambda task: transfer.evaluate(task, out=out, **SMOKE, **TRAINED[task], **SCORED[task])[0])


@pytest.mark.parametrize("task", ["reid", "linear", pytest.param("detect", marks=pytest.mark.nightly)])
def test_scores_are_equal_to_the_bit(runs: Callable[[str], transfer.Run], out: Path, task: str) -> None:
    run = runs(task)
    again = transfer.evaluate(task, out=out, weights=run.run_id, epochs=0, **SMOKE, **SCORED[task])[0]
    assert again.scores == run.scores
    assert run.scores
    assert again.run_id != run.run_id
    assert again.record.cost["train_seconds"] == 0
    assert not (again.folder / "export").exists()
    assert (run.record.export is None) == (task == "linear"), "whose backbone stays as it was"


def test_options_without_effect_are_refused_and_count_for_nothing(runs: Any, out: Path, tmp_path: Path) -> None:
    options = {**SMOKE, "weights": runs("reid").weights, "epochs": 0}
    with pytest.raises(transfer.UsageError, match="--lr has no effect with --epochs 0"):
        transfer.evaluate("reid", out=out, lr=0.1, **options)
    layer = tmp_path / "rate.yaml"
    layer.write_text("lr: 0.1\nnum_identities: 2\n")
    plain, layered = (transfer.evaluate("reid", out=out, config=files, **options)[0] for files in ([], [layer]))
    assert plain.run_id == layered.run_id


def test_weights_without_a_head_are_refused(out: Path) -> None:
    with pytest.raises(transfer.MissingInput, match="set --weights to a run of linear"):
        transfer.evaluate("linear", out=out, epochs=0, **SMOKE)


def test_a_head_of_another_task_is_refused(runs: Callable[[str], transfer.Run], out: Path) -> None:
    with pytest.raises(transfer.UserError, match="of another task or of other options"):
        transfer.evaluate("detect", out=out, weights=runs("reid").run_id, epochs=0, **SMOKE, **SCORED["detect"])
