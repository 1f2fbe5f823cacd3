"""Real runs verify; whatever is changed in them is named."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transfer.pretrain import main as pretrain
from transfer.records.checksums import with_checksum
from transfer.records.store import Record, Store
from transfer.run import main as run
from transfer.verify.__main__ import main
from transfer.verify.verification import verify

TINY = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--epochs", "1", "--warmup-epochs", "0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `weights`, and `runs`: a pretraining, and a ReID run that starts from what it exported."""
    folder = tmp_path_factory.mktemp("made")
    places = ["--out", str(folder / "runs")]
    assert pretrain(["deit", *TINY, *places, "--weights-to", str(folder / "weights")]) == 0
    assert run(["reid", *TINY, *places, "--weights", str(folder / "weights" / "tiny")]) == 0
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """The same to be spoilt; what was exported lies in the copy alone."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def folder_of(copy: Path, task: str) -> Path:
    (found,) = (copy / "runs").glob(f"{task}-*")
    return found


def test_real_runs_verify(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(made / "runs")]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 runs are right" in out
    assert "not checked" not in out
    record = folder_of(made, "reid") / "record.json"
    assert main([str(record)]) == main([str(record.parent), "--weights", str(made / "weights")]) == 0


def test_the_folder_of_a_sweep_is_that_of_its_runs(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(made)]) == 0
    assert "2 of 2 runs are right" in capsys.readouterr().out


def test_records_say_what_their_weights_come_from(made: Path) -> None:
    parent, record = (Record.read(folder_of(made, task) / "record.json") for task in ("pretrain", "reid"))
    assert parent.origin == {}
    marks = {"smoke": True, "dirty": parent.environment["dirty"], "subset": None}
    assert record.origin == {**marks, "training": parent.config_digest, "seed": parent.seed}


def altered_outcomes(folder: Path, copy: Path) -> None:
    """Another result for one query or image."""
    with np.load(folder / "outcomes.npz") as file:
        outcomes = dict(file)
    name = "ap" if "ap" in outcomes else "rank"
    outcomes[name] = outcomes[name].copy()
    place = np.flatnonzero(outcomes[name])[0]
    outcomes[name][place] = 0
    if "ap_worst" in outcomes:
        outcomes["ap_worst"][place] = 0
    np.savez_compressed(folder / "outcomes.npz", **outcomes)


def other_record(folder: Path, **given: Any) -> None:
    """A record that was changed by somebody who knows how to make its digest."""
    record = Record.read(folder / "record.json")
    (folder / "record.json").write_bytes(with_checksum(asdict(replace(record, **given))))


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def flipped(path: Path) -> None:
    """One bit of the last weight."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def best_score(folder: Path, copy: Path) -> None:
    record = Record.read(folder / "record.json")
    other_record(folder, scores=record.scores | {record.primary: 0.99})


def edited_score(folder: Path, copy: Path) -> None:
    record = Record.read(folder / "record.json")
    replaced(
        folder / "record.json", f'"{record.primary}": {record.scores[record.primary]!r}', f'"{record.primary}": 0.99'
    )


SPOILT: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "a prediction": (altered_outcomes, "outcomes.npz: not the file that the run wrote"),
    "a score": (edited_score, "record.json: edited after it was written"),
    "a score, with a new digest": (best_score, "0.99 in the record"),
    "a line of the options": (
        lambda folder, copy: replaced(folder / "options.yaml", "epochs: 1", "epochs: 2"),
        "options.yaml: not the file that the run wrote",
    ),
    "a line of the history": (
        lambda folder, copy: (folder / "history.jsonl").write_text(""),
        "history.jsonl: not the file that the run wrote (0 bytes instead of",
    ),
    "a missing file": (lambda folder, copy: (folder / "history.jsonl").unlink(), "history.jsonl: missing"),
    "damaged outcomes": (lambda folder, copy: (folder / "outcomes.npz").write_bytes(b"PK"), "cannot be scored"),
    "missing outcomes": (lambda folder, copy: (folder / "outcomes.npz").unlink(), "outcomes.npz: missing, and"),
    "the seed": (lambda folder, copy: other_record(folder, seed=7), "seed: 7 in the record, 0 in its identity"),
    "the rate": (
        lambda folder, copy: other_record(
            folder, options=Record.read(folder / "record.json").options | {"weight_decay": 0.5}
        ),
        "weight_decay: 0.5 in the record",
    ),
    "the identity": (
        lambda folder, copy: other_record(folder, run_key=64 * "0"),
        "run_id: ",
    ),
    "the identity's content": (
        lambda folder, copy: other_record(
            folder, seed=7, run_key_content=Record.read(folder / "record.json").run_key_content | {"seed": 7}
        ),
        "from its content",
    ),
    "the direction of a score": (
        lambda folder, copy: other_record(
            folder,
            metrics={
                name: metric | {"direction": "lower"}
                for name, metric in Record.read(folder / "record.json").metrics.items()
            },
        ),
        "is lower in the record, higher of the task",
    ),
    "the primary score": (lambda folder, copy: other_record(folder, primary="rank10"), "primary: rank10 in the record"),
    "what no run writes": (lambda folder, copy: other_record(folder, files={"x": 1}), "not a readable record (files)"),
    "an export that is no id": (
        lambda folder, copy: other_record(folder, export={"a": 1}),
        "record.json: not a readable record (export)",
    ),
    "an identity of another form": (
        lambda folder, copy: other_record(folder, run_key_content={"seed": 0}),
        "holds what no run writes",
    ),
    "the record": (lambda folder, copy: (folder / "record.json").write_text("{"), "not a readable record"),
}


@pytest.mark.parametrize("task", ["pretrain", "reid"])
@pytest.mark.parametrize("what", SPOILT)
def test_what_was_changed_is_named(copy: Path, what: str, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, said = SPOILT[what]
    spoil(folder_of(copy, task), copy)
    assert main([str(copy / "runs")]) == 1
    out = capsys.readouterr().out
    assert said in out
    assert "1 of 2 runs are right" in out


def test_a_prediction_shows_in_the_scores_even_when_all_digests_are_new(copy: Path) -> None:
    folder = folder_of(copy, "reid")
    altered_outcomes(folder, copy)
    record = Record.read(folder / "record.json")
    with np.load(folder / "outcomes.npz") as file:
        outcomes = dict(file)
    Store(copy / "runs").write(record, (folder / "options.yaml").read_text(), outcomes)
    (wrong,) = verify(folder, copy / "weights").wrong
    assert wrong.startswith(f"mAP: {record.scores['mAP']} in the record")


@pytest.mark.parametrize(
    ("array", "value", "said"),
    [
        ("ap_worst", 0.999, "0 <= ap_worst <= ap <= ap_best <= 1 does not hold for 1 queries, the first is 3"),
        ("ap_best", 0.0, "0 <= ap_worst <= ap <= ap_best <= 1 does not hold for 1 queries"),
        ("ap_best", 1.5, "0 <= ap_worst <= ap <= ap_best <= 1 does not hold for 1 queries"),
        ("ap_best", np.nan, "0 <= ap_worst <= ap <= ap_best <= 1 does not hold for 1 queries"),
        ("kept", 0, "before + tied <= kept does not hold for 1 queries"),
    ],
)
def test_ranked_lists_that_cannot_be_are_named_though_they_give_the_scores(
    copy: Path, array: str, value: float, said: str
) -> None:
    folder = folder_of(copy, "reid")
    with np.load(folder / "outcomes.npz") as file:
        outcomes = dict(file)
    outcomes[array][3] = value
    assert not np.array_equal(outcomes["ap"][3], 0.999)
    record = Record.read(folder / "record.json")
    Store(copy / "runs").write(record, (folder / "options.yaml").read_text(), outcomes)
    (wrong,) = verify(folder, copy / "weights").wrong
    assert said in wrong


def test_a_folder_without_a_record_is_not_right(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder_of(copy, "reid") / "record.json").unlink()
    assert main([str(copy / "runs")]) == 1
    out = capsys.readouterr().out
    assert "1 of 1 runs are right" in out
    assert f"no record  {folder_of(copy, 'reid')}: interrupted" in out


def test_a_changed_weight_is_named_by_both_runs(copy: Path) -> None:
    flipped(copy / "weights" / "tiny" / "model.safetensors")
    for task, said in (("pretrain", "not the weights that the run left"), ("reid", "weights: the run started from")):
        (wrong,) = verify(folder_of(copy, task), copy / "weights").wrong
        assert said in wrong
    flipped(folder_of(copy, "pretrain") / "export" / "model.safetensors")
    assert any(
        text.startswith("export/model.safetensors: not the file") for text in verify(folder_of(copy, "pretrain")).wrong
    )


def test_weights_that_are_not_here_are_not_checked(copy: Path, tmp_path: Path) -> None:
    verdict = verify(folder_of(copy, "reid"), tmp_path / "nowhere")
    assert not verdict.wrong
    assert any("weights not checked" in note for note in verdict.notes)


def test_a_folder_of_another_name_and_files_of_others_are_named(copy: Path) -> None:
    folder = folder_of(copy, "reid")
    (folder / "mine.csv").touch()
    moved = folder.rename(copy / "runs" / "renamed")
    verdict = verify(moved)
    assert verdict.wrong == [f"the folder is named renamed, its run {folder.name}"]
    assert "not of the record: mine.csv" in verdict.notes


def test_two_records_of_one_run_that_differ_are_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(copy, "reid")
    other = copy / "other" / folder.name
    shutil.copytree(folder, other)
    assert main([str(folder), str(other)]) == 0
    best_score(other, copy)
    assert main([str(folder), str(other)]) == 1
    assert "two records of one run" in capsys.readouterr().out


def test_what_is_other_than_here_is_told_and_is_not_wrong(copy: Path) -> None:
    folder = folder_of(copy, "reid")
    there = Record.read(folder / "record.json").environment
    versions = there["versions"] | {"torch": "0.0.1"}
    other_record(folder, environment=there | {"device": "An abacus", "versions": versions})
    verdict = verify(folder)
    assert not verdict.wrong
    told = f"other than here: {'; '.join(verdict.environment)}"
    assert "device An abacus there, " in told
    assert "torch 0.0.1 there, " in told


def test_scores_of_another_version_are_not_computed_anew(copy: Path) -> None:
    folder = folder_of(copy, "reid")
    record = Record.read(folder / "record.json")
    other_record(folder, task_version=99, run_key_content=record.run_key_content | {"task_version": 99})
    verdict = verify(folder)
    assert any("version 99 of task reid" in note for note in verdict.notes)
    other_record(folder, task="nothing", run_key_content=record.run_key_content | {"task": "nothing"})
    assert any("there is no task nothing here" in note for note in verify(folder).notes)


@pytest.mark.parametrize(("words", "status"), [([], 2), (["nowhere"], 1)])
def test_words_that_mean_no_run(
    words: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == status
    err = capsys.readouterr().err
    assert "error:" in err
    assert "Traceback" not in err
