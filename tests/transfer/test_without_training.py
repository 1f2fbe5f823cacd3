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
    "linear": {"epochs": 3},
    "segment": {"epochs": 1},
    "detect": {"epochs": 1, "warmup_epochs": 0, "batch_size": 2},
}
SCORED: dict[str, dict[str, Any]] = {"segment": {"size": 96}, "detect": {"subset": 6, "size": (96, 128)}}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(out: Path) -> Callable[[str], transfer.Run]:
    """The run of a task, trained when it is first asked for."""
    return cache(lambda task: transfer.evaluate(task, out=out, **SMOKE, **TRAINED[task], **SCORED.get(task, {}))[0])


@pytest.mark.parametrize("task", ["reid", "linear", "segment", pytest.param("detect", marks=pytest.mark.nightly)])
def test_scores_are_equal_to_the_bit(runs: Callable[[str], transfer.Run], out: Path, task: str) -> None:
    run = runs(task)
    again = transfer.evaluate(task, out=out, weights=run.run_id, epochs=0, **SMOKE, **SCORED.get(task, {}))[0]
    assert again.scores == run.scores
    assert run.scores
    assert again.run_id != run.run_id
    assert again.record.cost["train_seconds"] == 0
    assert not (again.folder / "export").exists()
    assert (run.record.export is None) == (task in ("linear", "segment")), "whose backbone stays as it was"


def test_weights_without_a_head_are_refused(out: Path) -> None:
    with pytest.raises(transfer.MissingInput, match="set --weights to a run of linear"):
        transfer.evaluate("linear", out=out, epochs=0, **SMOKE)
