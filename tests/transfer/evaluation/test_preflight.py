"""What an export says about the trainings behind it; weights that changed since, or do not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backbones.backbone import create
from backbones.weights.export import export
from tests.runs import record as record_of
from transfer.cli.command import read_command
from transfer.cli.recipe import task_recipe
from transfer.core.exports import CONFIG, PRETRAIN, WEIGHTS
from transfer.evaluation.preflight import export_origin, find_backbone
from transfer.run import main
from transfer.task import load_task

CLEAN = {"smoke": False, "dirty": False, "subset": None}


@pytest.mark.parametrize(
    ("about", "origin"),
    [
        ({}, {}),
        ({"smoke": True, "subset": 8}, {"smoke": True, "dirty": None, "subset": 8}),
        (CLEAN | {"origin": {"smoke": True, "dirty": None, "subset": 8}}, {"smoke": True, "dirty": False, "subset": 8}),
        (CLEAN | {"dirty": True, "origin": CLEAN}, CLEAN | {"dirty": True}),
    ],
)
def test_marks_go_on_from_one_export_to_the_next(about: dict[str, Any], origin: dict[str, Any]) -> None:
    assert export_origin(about) == origin
    assert export_origin(CLEAN | {"origin": origin}) == CLEAN | {name: mark for name, mark in origin.items() if mark}


def test_what_partial_keeps_and_what_it_changes_is_noted(here: Path) -> None:
    export(create("tiny", img_size=32, weights="random", stem="conv", attention="relu"), Path("out"))
    task, words = load_task("knn"), ["--backbone", "tiny", "--smoke", "--weights", "out", "--load", "partial"]

    def notes(*more: str) -> list[str]:
        command = read_command(task_recipe("knn"), task.options, [*words, *more])
        return [text for text, recorded in find_backbone(command, task).lines if recorded]

    kept = "kept from out: stem conv, not patchify; attention relu, not softmax; qk_norm True, not False"
    assert notes("--length", "image") == [f"--load partial: {kept}"]
    changed = "--load partial: out contains a different architecture: attention relu there, gelu here"
    assert notes("--attention", "gelu")[0] == changed


SIZES = ("--backbone", "tiny", "--smoke", "--threads", "1")
TRAINED = {"reid": "neck.*", "linear": "head.*"}


@pytest.fixture
def no_data(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every opening of data an error of another kind."""

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("data was opened")

    for task in (*TRAINED, "fewshot", "knn"):
        monkeypatch.setattr(type(load_task(task)), "open", opened)


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("task", ["reid", "fewshot"])
def test_weights_of_another_model_are_told_once_before_data_is_opened(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone = create("tiny", img_size=32, weights="random")
    state = {name: tensor for name, tensor in backbone.model.state_dict().items() if name != "norm.weight"}
    torch.save(state, "other.pth")
    datasets = ["--dataset", "toy_cub200", "toy_dtd"] if task == "fewshot" else []
    assert main([task, *SIZES, *datasets, "--weights", "other.pth", "--weights-size", "32", "32"]) == 1
    message = capsys.readouterr().err
    assert message.count("other.pth does not fit backbone tiny: missing: norm.weight") == 1


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("task", ["reid", "linear"])
def test_trainable_patterns_without_a_parameter_are_told_before_data_is_opened(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([task, *SIZES, "--trainable", TRAINED[task], "neck.klassifier.*"]) == 2
    told = capsys.readouterr().err
    assert "--trainable 'neck.klassifier.*' matches no trainable parameter" in told
    assert told.rstrip().endswith("its components: head.*" if task == "linear" else " neck.norm.* neck.classifier.*")
    assert main([task, *SIZES, "--trainable", TRAINED[task]]) == 1
    assert "AssertionError: data was opened" in capsys.readouterr().err


FACTS = {"run": "pretrain-a", "identity": "a" * 64, "protocol": "b" * 64, "seed": 0, "smoke": True}
QUICK = ["--smoke", "--threads", "1", "--workers", "0", "--device", "cpu"]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return export(create("tiny"), tmp_path / "weights", {PRETRAIN: FACTS})


def test_changed_weights_are_refused_and_keep_their_marks_where_they_are_allowed(weights: Path, refused) -> None:
    tensors = load_file(weights / WEIGHTS)
    save_file({name: value * 1.5 for name, value in tensors.items()}, weights / WEIGHTS, {"format": "pt"})
    command = ["knn", "--backbone", "tiny", "--weights", str(weights), *QUICK]
    said = f"{WEIGHTS}: not the file that was exported"
    assert said in refused(main, command)
    assert said in refused(main, ["knn", "--backbone", str(weights), *QUICK]), "no random ones in their place"
    (weights / CONFIG).unlink()
    assert main([*command, "--allow-modified", "--weights-size", "224", "224"]) == 0
    record = record_of(Path("runs"))
    assert record.origin["modified"]
    assert record.origin["smoke"]


def test_what_is_taken_of_a_file_is_said_and_recorded_and_what_is_dropped_is_refused(refused, tmp_path, capfd) -> None:
    state = create("tiny", img_size=96).model.state_dict() | {"blocks.0.ls1.gamma": torch.ones(64)}
    torch.save(state, tmp_path / "w.pth")
    command = ["knn", "--backbone", "vit_tiny", "--weights", str(tmp_path / "w.pth"), "--load", "partial", *QUICK]
    command += ["--weights-size", "96", "96"]
    assert "without a place in the model: blocks.*.ls1. " in refused(main, command)
    assert main([*command, "--allow-dropped", "--load", "strict"]) == 2
    assert main([*command, "--allow-dropped"]) == 0
    line = (
        f"weights {tmp_path}/w.pth: plain state dict; positions 6 x 6 -> 2 x 2; mean and std of ImageNet, not known to "
        "be this file's (--mean, --std); dropped: blocks.*.ls1"
    )
    assert line in " ".join(capfd.readouterr().err.split())
    record = record_of(Path("runs"))
    assert line in record.notes
    assert record.details["weights"]["dropped"] == ["blocks.*.ls1"]
    assert record.backbone["mean"] == [0.485, 0.456, 0.406]
    assert "allow_dropped" not in record.run_key_content["backbone"]
