"""Real runs verify; whatever is changed in them is named."""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transfer.pretrain import main as pretrain
from transfer.records.record import Record, with_checksum
from transfer.run import main as run
from transfer.verify.__main__ import main
from transfer.verify.checks import verify

TINY = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--epochs", "1", "--warmup-epochs", "0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `weights`, and `runs`: a pretraining, and a ReID run that starts from what it exported."""
    folder = tmp_path_factory.mktemp("made")
    places = ["--subset", "16", "--out", str(folder / "runs")]
    assert pretrain(["deit", *TINY, *places, "--batch-size", "16", "--export-dir", str(folder / "weights")]) == 0
    assert run(["reid", *TINY, *places, "--weights", str(folder / "weights" / "tiny")]) == 0
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """The same to be spoilt; what was exported lies in the copy alone."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def folder_of(copy: Path, task: str = "reid") -> Path:
    (found,) = (copy / "runs").glob(f"{task}-*")
    return found


def test_real_runs_verify(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(made / "runs")]) == main([str(made)]) == 0
    assert capsys.readouterr().out.count("2 of 2 runs are right") == 2
    folder = folder_of(made)
    assert main([str(folder / "record.json")]) == main([str(folder)]) == 0
    marks = {"smoke": True, "dirty": Record.read(folder / "record.json").dirty, "subset": 16}
    parent = Record.read(folder_of(made, "pretrain") / "record.json")
    origin = Record.read(folder / "record.json").origin
    assert origin == {**marks, "training": parent.config_digest, "seed": parent.seed}


def test_records_of_one_run_with_other_results_are_in_dispute(made: Path, copy: Path, capsys) -> None:
    status = Record.read(folder_of(copy) / "record.json").outcome | {"status": "nonfinite"}
    sealed(outcome=status)(folder_of(copy))
    assert main([str(made / "runs"), str(copy / "runs")]) == 1
    assert "4 of 4 runs are right, but 1 record in dispute" in capsys.readouterr().out


def altered_outcomes(folder: Path) -> None:
    """Another result for one query."""
    with np.load(folder / "outcomes.npz") as file:
        outcomes = dict(file)
    outcomes["ap"][np.flatnonzero(outcomes["ap"])[0]] = 0
    np.savez_compressed(folder / "outcomes.npz", **outcomes)


def sealed(**given: Any) -> Callable[[Path], Any]:
    """What somebody does who knows how to make a record's digest; of options and backbone single values change."""

    def change(folder: Path) -> None:
        record = asdict(Record.read(folder / "record.json"))
        parts = {name: record[name] | given[name] for name in ("options", "backbone") if name in given}
        (folder / "record.json").write_bytes(with_checksum(record | given | parts))

    return change


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a prediction": (altered_outcomes, "outcomes.npz: not the file that the run wrote"),
    "a score": (lambda folder: replaced(folder / "record.json", '"mAP": 0', '"mAP": 1'), "record.json: edited after"),
    "a score, with a new digest": (sealed(scores={"mAP": 0.99}), "mAP: 0.99 in the record"),
    "a line of the history": (lambda folder: (folder / "history.jsonl").write_text(""), "the run wrote (0 bytes)"),
    "a missing file": (lambda folder: (folder / "history.jsonl").unlink(), "history.jsonl: missing"),
    "missing outcomes": (lambda folder: (folder / "outcomes.npz").unlink(), "outcomes.npz: missing, although"),
    "an option": (sealed(options={"lr": 7.0}), "options.lr: 7.0 in the"),
    "an option that was none": (sealed(options={"milestones": [1.0]}), "milestones: [1.0] in the record, None in its"),
    "the configuration": (sealed(config_digest="0" * 64), "config_digest: 000000000000 is not"),
    "the stem": (
        sealed(backbone={"stem": "conv"}),
        "backbone.stem: 3Conv+3BN+3ReLU+1Proj@2,1,1,8 in the record, 1Proj@16 in its run key",
    ),
    "the seed": (sealed(seed=77), "seed: 77 in the record, "),
    "the identity": (sealed(run_key_content={"seed": 0}), "from its content"),
    "the record": (lambda folder: (folder / "record.json").write_text("{"), "not a readable record"),
    "a missing record": (lambda folder: (folder / "record.json").unlink(), ": interrupted"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_was_changed_is_named(copy: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, said = SPOILT[what]
    spoil(folder_of(copy))
    assert main([str(copy / "runs")]) == 1
    out = capsys.readouterr().out
    assert said in out
    assert f"1 of {1 if what == 'a missing record' else 2} runs are right" in out


def test_a_folder_of_another_name_and_files_of_others_are_named(copy: Path) -> None:
    folder = folder_of(copy)
    (folder / "mine.csv").touch()
    verdict = verify(folder.rename(copy / "runs" / "renamed"))
    assert verdict.wrong == [f"the folder is named renamed, its run {folder.name}"]
    assert "not of the record: mine.csv" in verdict.notes


def test_scores_of_another_version_or_task_are_not_recomputed(copy: Path) -> None:
    unknown = {"version 99 of task reid": {"task_version": 99}, "task nothing is not available": {"task": "nothing"}}
    for said, given in unknown.items():
        sealed(**given)(folder_of(copy))
        assert any(said in note for note in verify(folder_of(copy)).notes)


@pytest.mark.parametrize("words", [[], ["nowhere"]])
def test_words_that_mean_no_run(words: list[str], here: Path, capsys) -> None:
    assert main(words) == 1
    assert "neither a run with a record.json" in capsys.readouterr().err
