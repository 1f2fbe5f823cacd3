"""What an export says about the trainings behind it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from backbones.backbone import create
from backbones.weights.export import export
from transfer.cli.command import read_command
from transfer.cli.recipe import task_recipe
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


def test_what_partial_keeps_and_what_it_changes_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every opening of data an error of another kind."""

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("data was opened")

    monkeypatch.chdir(tmp_path)
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
