"""Smoke runs of every task, computed anew: they agree, and whatever is planted in a metric is found."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from backbones.pretrain.method import load_method
from backbones.settings import config_names
from tasks.reference.recomputed import ROUNDING
from tests.tasks.reference.test_statements import ROOM
from transfer.pretrain import main as pretrain
from transfer.records.checksums import size_and_sha256, with_checksum
from transfer.records.store import Record, Store
from transfer.report.__main__ import main as report
from transfer.run import main as run
from transfer.verify.__main__ import main
from transfer.verify.checks import task_of
from transfer.verify.verification import verify

TINY = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]
SHORT = ["--epochs", "1", "--warmup-epochs", "0", "--judge-after", "1000"]
SMALL = ["--subset", "10"]
WORDS: dict[str, list[str]] = {
    "reid": [*SHORT, "--subset", "16", "--flip-test", "--feature", "after"],
    "fewshot": [*SMALL, "--shots", "1", "5", "--l2", "16", "1024"],
    "detect": [*SHORT, "--subset", "6"],
    "linear": [*SHORT, *SMALL, "--lr", "0.1"],
    "knn": [*SMALL, "--k", "3", "--other-k", "10"],
    "classify": [*SMALL],
    "finetune": [*SHORT, *SMALL],
    "tokens": [*SMALL],
}
TASKS = ["pretrain-supervised", "pretrain-dino", *WORDS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs`, one of each task, `weights` and `features`."""
    folder = tmp_path_factory.mktemp("made")
    places = [*TINY, "--out", str(folder / "runs")]
    for recipe in ("dino", "deit"):
        batch = ["--batch", "16", "--weights-to", str(folder / "weights"), "--name", recipe]
        assert pretrain([recipe, *places, *batch, *SHORT, *SMALL]) == 0
    for task, words in WORDS.items():
        trained = [] if task in ("reid", "detect", "knn") else ["--weights", str(folder / "weights" / "deit")]
        data = ["--dataset", "toy_digits", "--features", str(folder / "features")] if task == "fewshot" else []
        assert run([task, *places, *words, *trained, *data]) == 0
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The folder of a task's run, in a copy that may be spoilt."""

    def copied(task: str) -> Path:
        source = folder_of(made, task)
        return Path(shutil.copytree(source, tmp_path / "runs" / source.name))

    return copied


def folder_of(made: Path, task: str) -> Path:
    (found,) = (made / "runs").glob(f"{task}-*")
    return found


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit status of `verify --recompute`, and what it prints."""
    status = main([*map(str, words), "--recompute"])
    return status, capsys.readouterr().out


def test_every_task_has_its_plain_statement() -> None:
    methods = {f"pretrain_{name}" for name in ("supervised", "dino") if load_method(name)}
    assert {*config_names("tasks"), *methods} <= {path.stem for path in ROOM.glob("*.py")}
    assert {*config_names("tasks")} == WORDS.keys()


@pytest.mark.parametrize("task", TASKS)
def test_a_smoke_run_agrees(made: Path, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(made, task)
    record = Record.read(folder / "record.json")
    status, out = said(capsys, folder)
    assert status == 0, out
    assert "weights" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if len(line.split()) == 5}
    for name, score in record.scores.items():
        told, anew, difference, tolerance = map(float, rows[name])
        assert told == pytest.approx(score, abs=1e-6)
        assert anew == pytest.approx(score, abs=tolerance + 1e-6)
        assert difference <= tolerance
    assert "not computed anew" not in out


def flipped(ranks: np.ndarray) -> np.ndarray:
    """The ranks of true classes with some right ones wrong, by more than five places; top-1 and top-5 both change."""
    found = ranks.copy()
    right = np.flatnonzero(ranks == 0)[:9]
    assert len(right)
    found[right] = 50
    return found


def other_ap(values: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(values)) < 4, np.abs(values - 0.9), values)


def other_bits(bits: np.ndarray) -> np.ndarray:
    """Detections that matched match nothing, and the others everything."""
    return np.asarray(np.uint16(1023) - np.minimum(bits, 1023), dtype=bits.dtype)


PLANTED: dict[str, dict[str, Callable[[np.ndarray], np.ndarray]]] = {
    "reid": {
        "ap": other_ap, "inp": other_ap, "before": lambda x: np.where(x < 10, 40, 0), "tied": np.ones_like,
        "hits": lambda x: np.minimum(x, 1),
        "ap_worst": np.zeros_like, "ap_best": np.ones_like, "kept": lambda x: np.maximum(x, 60),  # what could be
    },
    "fewshot": {"correct_1shot": np.invert, "correct_5shot": np.invert},
    "linear": {"rank": flipped, "best_rank": flipped},
    "knn": {"rank": flipped, "rank_k10": flipped},
    "pretrain-dino": {"rank": flipped},
    **{task: {"rank": flipped} for task in ("pretrain-supervised", "classify", "finetune")},
    "tokens": {
        f"similarity_{place}": lambda x: x + np.where(np.arange(len(x)) == 3, 0.05, 0)
        for place in ("stem", "positions", "last")
    },
    "detect": {"box_matched": other_bits, "mask_matched": other_bits},
}  # fmt: skip


def planted(folder: Path, changes: dict[str, Callable[[np.ndarray], np.ndarray]]) -> dict[str, float]:
    """Changes outcomes, and the scores with them, by the suite's own writer; returns the scores as they were."""
    record = Record.read(folder / "record.json")
    with np.load(folder / "outcomes.npz") as file:
        outcomes = dict(file)
    outcomes |= {name: change(outcomes[name]) for name, change in changes.items()}
    changed = replace(record, scores=task_of(record).rescore(outcomes))
    Store(folder.parent).write(changed, (folder / "options.yaml").read_text(), outcomes)
    assert verify(folder).right, "nothing but a recomputation can tell"
    return record.scores


@pytest.mark.parametrize("task", TASKS)
def test_a_planted_error_in_each_score_is_found(
    copy: Callable[[str], Path], task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(task)
    if task == "detect":  # the detections are enough, and soon scored
        shutil.rmtree(folder / "export")
    before = planted(folder, PLANTED[task])
    after = Record.read(folder / "record.json").scores
    assert any(abs(before[name] - after[name]) > 1e-4 for name in before)
    status, out = said(capsys, folder)
    assert status == 1
    assert f"WRONG  {folder}" in out
    for name in before:
        if abs(before[name] - after[name]) > ROUNDING:
            assert f"       {name}: " in out
    named = {name for name in before if f"       {name}: " in out}
    assert len(named) >= (len(before) if task != "detect" else 8)


def test_a_metric_that_was_wrong_when_the_run_was_made_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tasks.ranking import metrics

    right = metrics.expected_ap
    monkeypatch.setattr(metrics, "expected_ap", lambda *given, **rule: tuple(0.9 * x for x in right(*given, **rule)))
    assert run(["reid", *TINY, *SHORT, "--subset", "16", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.glob("reid-*")
    assert verify(folder).right
    status, out = said(capsys, folder)
    assert status == 1
    assert "       mAP: " in out
    assert "       mINP: " not in out


def test_detections_that_no_forward_pass_gives_are_found(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy("detect")
    path, record = folder / "detections.json", Record.read(folder / "record.json")
    results = json.loads(path.read_bytes())
    for result in results:  # as half precision rounds them
        result["bbox"] = [8 * round(side / 8) for side in result["bbox"]]
    path.write_text(json.dumps(results))
    with np.load(folder / "outcomes.npz") as file:
        Store(folder.parent).write(record, (folder / "options.yaml").read_text(), dict(file))
    status, out = said(capsys, folder)
    assert status == 1
    assert "detections found again: " in out


def test_a_wrong_mean_over_tokens_is_found(copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy("tokens")
    record = Record.read(folder / "record.json")
    layers, attention = record.details["layers"], record.details["attention"]
    layers[-1]["effective_rank"] *= 1.1
    attention[0]["entropy"] *= 1.1
    (folder / "record.json").write_bytes(with_checksum(asdict(record)))
    status, out = said(capsys, folder)
    assert status == 1
    assert f"tokens of {layers[-1]['place']}: effective_rank" in out
    assert f"attention of {attention[0]['place']}: entropy" in out


def test_a_subset_looks_at_as_many_samples(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = said(capsys, folder_of(made, "reid"), "--subset", "5")
    assert status == 0
    assert "5 queries, " in out
    status, out = said(capsys, folder_of(made, "tokens"), "--subset", "5")
    assert status == 0
    assert "not computed anew: the means at every place" in out


def test_a_subset_sees_a_score_that_is_not_the_mean_of_its_outcomes(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy("classify")
    record = Record.read(folder / "record.json")
    changed = replace(record, scores={"top1": 0.9, "top5": record.scores["top5"]})
    (folder / "record.json").write_bytes(with_checksum(asdict(changed)))
    _, out = said(capsys, folder, "--subset", "5")
    assert "top1, mean of outcomes: 0.9 in the record" in out


def test_features_of_the_store_stand_in_for_weights(
    made: Path, copy: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy("fewshot")
    status, out = said(capsys, folder, "--weights", tmp_path / "nowhere")
    assert status == 0
    assert "from features of the store" in out
    record = Record.read(folder / "record.json")
    changed = replace(record, options=record.options | {"features": str(tmp_path / "none")})
    (folder / "record.json").write_bytes(with_checksum(asdict(changed)))
    status, out = said(capsys, folder, "--weights", tmp_path / "nowhere")
    assert status == 1
    (line,) = (line for line in out.splitlines() if "not computed anew" in line and "of 1" not in line)
    assert "the weights sha256:" in line
    assert "--weights FOLDER" in line


@pytest.mark.parametrize(
    ("task", "file"), [("reid", "head.safetensors"), ("linear", "head.safetensors"), ("finetune", "")]
)
def test_missing_weights_are_named(
    copy: Callable[[str], Path], task: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(task)
    shutil.rmtree(folder / "export")
    status, out = said(capsys, folder)
    assert status == 1
    assert f"not computed anew: the run's weights: there is no {folder / 'export' / file}" in out
    assert "1 of 1 runs were not computed anew" in out


@pytest.mark.parametrize(("task", "file"), [("reid", "model.safetensors"), ("linear", "head.safetensors")])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_weights_whose_outputs_no_score_is_computed_from_are_said(
    copy: Callable[[str], Path], task: str, file: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy(task) / "export" / file
    tensors = load_file(path)
    save_file({name: torch.full_like(tensor, value) for name, tensor in tensors.items()}, path)
    record = Record.read(path.parents[1] / "record.json")
    export = {f"export/{file}": size_and_sha256(path)}
    elsewhere(path.parents[1], files={**record.files, **export}, weights_id="random")
    status, out = said(capsys, path.parents[1])
    assert status == 1
    assert "not computed anew: the run's weights: their outputs for the " in out


def test_detections_are_scored_anew_without_the_weights(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy("detect")
    shutil.rmtree(folder / "export")
    _, out = said(capsys, folder)
    assert "not computed anew: the detections themselves: the run's weights" in out
    assert "box_AP " in out


def elsewhere(folder: Path, **given: Any) -> None:
    record = Record.read(folder / "record.json")
    (folder / "record.json").write_bytes(with_checksum(asdict(replace(record, **given))))


def test_missing_images_are_named(
    copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRANSFER_DATA", raising=False)
    folder = copy("knn")
    options = Record.read(folder / "record.json").options
    elsewhere(folder, options=options | {"dataset": ["imagenet1k"]})
    status, out = said(capsys, folder)
    assert status == 1
    assert "not computed anew: the images: imagenet1k: the data set was not found" in out
    bundle = tmp_path / "runs.zip"
    assert report([str(folder.parent), "--smoke", "--dirty", "--bundle", str(bundle)]) == 0
    capsys.readouterr()
    status, out = said(capsys, bundle)
    assert status == 1
    assert "not computed anew: the images: imagenet1k: the data set was not found" in out


def test_other_images_are_named(copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy("knn")
    elsewhere(folder, dataset=Record.read(folder / "record.json").dataset | {"digest": 64 * "0"})
    _, out = said(capsys, folder)
    assert "not computed anew: the images: those of toy_digits here are not those of the run" in out


def test_a_shared_copy_without_weights_says_so(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "runs.zip"
    source = tmp_path / "runs" / folder_of(made, "reid").name
    shutil.copytree(folder_of(made, "reid"), source)
    assert report([str(tmp_path / "runs"), "--smoke", "--dirty", "--bundle", str(bundle)]) == 0
    capsys.readouterr()
    status, out = said(capsys, bundle)
    assert status == 1
    assert f"not computed anew: the run's weights: there is no {bundle}/{source.name}/export/head.safetensors" in out


def test_runs_that_leave_no_weights_are_the_same_runs(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reid", *TINY, *WORDS["reid"], "--save-weights", "none", "--out", str(tmp_path)]
    assert run(words) == 0
    (folder,) = tmp_path.glob("reid-*")
    assert folder.name == folder_of(made, "reid").name
    assert not (folder / "export").exists()
    assert verify(folder).right


def test_other_versions_and_words_that_do_not_fit(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy("knn")
    elsewhere(folder, task_version=99)
    status, out = said(capsys, folder)
    assert status == 1
    assert "not computed anew: version 99 of task knn made the record" in out
    for words in (["--subset", "5"], ["--recompute", "--subset", "0"]):
        assert main([str(folder), *words]) == 2
