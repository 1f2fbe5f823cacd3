"""Smoke runs of every task, evaluated again: they agree, and what is planted in their results is found."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.settings import config_names
from transfer.pretrain import main as pretrain
from transfer.records.checksums import with_checksum
from transfer.records.store import Record, Store
from transfer.run import main as run
from transfer.verify.__main__ import main
from transfer.verify.checks import task_of
from transfer.verify.verification import verify

TINY = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]
SHORT = ["--epochs", "1", "--warmup-epochs", "0"]
SMALL = ["--subset", "10"]
WORDS: dict[str, list[str]] = {
    "reid": [*SHORT, "--subset", "16", "--flip-test", "--feature", "after"],
    "fewshot": [*SMALL, "--shots", "1", "5", "--l2", "16", "1024", "--dataset", "toy_digits"],
    "detect": [*SHORT, "--subset", "6"],
    "linear": [*SHORT, *SMALL, "--lr", "0.1"],
    "knn": [*SMALL, "--k", "3", "--other-k", "10"],
    "classify": [*SMALL],
    "finetune": [*SHORT, *SMALL],
    "tokens": [*SMALL],
}
PRETRAIN = ["pretrain-supervised", "pretrain-dino"]
DEFAULT = ("knn", "reid", "pretrain-supervised")
TASKS = [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.nightly) for name in [*PRETRAIN, *WORDS]]
Make = Callable[[str], Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Gives the folder of a task's run, which is made when it is first asked for."""
    folder, found = tmp_path_factory.mktemp("made"), dict[str, Path]()
    weights = folder / "weights"

    def made(task: str) -> Path:
        if task in found:
            return found[task]
        places = [*TINY, "--out", str(folder / "runs")]
        if task in PRETRAIN:
            recipe = {"pretrain-dino": "dino", "pretrain-supervised": "deit"}[task]
            batch = ["--batch", "16", "--weights-to", str(weights), "--name", recipe]
            assert pretrain([recipe, *places, *batch, *SHORT, *SMALL]) == 0
        else:
            trained = []
            if task in ("classify", "finetune", "linear", "fewshot", "tokens"):
                made("pretrain-supervised")
                trained = ["--weights", str(weights / "deit")]
            assert run([task, *places, *WORDS[task], *trained]) == 0
        (found[task],) = (folder / "runs").glob(f"{task}-*")
        return found[task]

    return made


@pytest.fixture
def copy(make: Make, tmp_path: Path) -> Make:
    """Gives a copy of a task's run that may be spoilt."""
    return lambda task: Path(shutil.copytree(make(task), tmp_path / "runs" / make(task).name))


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit status of `verify --recompute`, and what it prints."""
    status = main([*map(str, words), "--recompute"])
    return status, capsys.readouterr().out


def sealed(folder: Path, **given: Any) -> None:
    record = Record.read(folder / "record.json")
    (folder / "record.json").write_bytes(with_checksum(asdict(replace(record, **given))))


def test_every_task_is_tried() -> None:
    assert {*config_names("tasks")} == WORDS.keys()


@pytest.mark.parametrize("task", TASKS)
def test_a_smoke_run_agrees(make: Make, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(task)
    record = Record.read(folder / "record.json")
    status, out = said(capsys, folder)
    assert status == 0, out
    for name, score in record.scores.items():
        assert f"{score:10.6f} in the record  {score:10.6f} again" in out, name
    assert "not recomputed" not in out


PLANTED: dict[str, dict[str, Callable[[np.ndarray], np.ndarray]]] = {
    "reid": {"ap": np.ones_like},
    "knn": {"rank": lambda x: np.where(x < 1, 50, x)},
}


@pytest.mark.parametrize("task", PLANTED)
def test_results_that_no_evaluation_gives_are_found(copy: Make, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy(task)
    record = Record.read(folder / "record.json")
    with np.load(folder / "outcomes.npz") as file:
        outcomes = dict(file)
    outcomes |= {name: change(outcomes[name]) for name, change in PLANTED[task].items()}
    changed = replace(record, scores=task_of(record).rescore(outcomes))
    assert changed.scores != record.scores
    Store(folder.parent).write(changed, (folder / "options.yaml").read_text(), outcomes)
    assert not verify(folder).wrong, "nothing but a recomputation can tell"
    status, out = said(capsys, folder)
    assert status == 1
    assert f"       {record.primary}: {changed.scores[record.primary]} in the record" in out


def test_weights_and_data_that_are_not_here_are_said_in_a_line(
    copy: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRANSFER_DATA", raising=False)
    trained = copy("reid")
    shutil.rmtree(trained / "export")
    status, out = said(capsys, trained)
    assert status == 1
    assert f"not recomputed: the run's weights: there are none in {trained / 'export'}" in out
    assert "1 of 1 runs were not recomputed" in out
    folder = copy("knn")
    record = Record.read(folder / "record.json")
    for given, reason in (
        ({"weights_id": "sha256:" + 64 * "0"}, "the weights sha256:000000000000 are not where the run"),
        ({"options": record.options | {"dataset": ["imagenet1k"]}}, "imagenet1k: the data set was not found"),
        ({"dataset": record.dataset | {"digest": 64 * "0"}}, "toy_digits: the data here is not that of the run"),
    ):
        sealed(folder, **(asdict(record) | given))
        assert f"not recomputed: {reason}" in said(capsys, folder)[1]


def test_other_versions_are_said_in_a_line(copy: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy("knn")
    sealed(folder, task_version=99)
    assert "not recomputed: version 99 of task knn made the record" in said(capsys, folder)[1]
    assert main([str(folder), "--data", "x"]) == 2
