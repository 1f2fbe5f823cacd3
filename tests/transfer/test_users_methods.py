"""Pretraining methods of the user's own, by path: that of the guide from a folder of the user's, and faults in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import transfer
from tests.documents import ROOT, files_in
from tests.runs import record
from transfer.pretrain import main
from transfer.run import main as run
from transfer.verify.__main__ import main as verify

FILES = files_in("docs/adding-a-part.md")
METHOD = FILES["my_method.py"]
NAME = "my_method.py:METHOD"
FLAGS = ["--backbone", "tiny", "--smoke", "--threads", "1"]
SHORT = [*FLAGS, "--epochs", "1", "--warmup-epochs", "0"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's with the method of the guide, in which commands start."""
    for name in ("my_method.py", "my_method.yaml"):
        (tmp_path / name).write_text(FILES[name])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_the_method_of_the_guide(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It learns, in a process of its own beside the user's folders; what it exports is what tasks load."""
    for name in ("tasks", "configs", "backbones"):
        (folder / name).mkdir()
    command = [sys.executable, "-m", "transfer.pretrain", NAME, *FLAGS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    made = record(folder / "runs")
    assert made.task == "pretrain-rotation"
    assert made.scores["rotation_accuracy"] > 0.5  # chance is 0.25
    assert made.user_code["method"]["file"] == f"{folder}/{NAME}"
    assert made.run_key_content["user_code"] == {"method": made.user_code["method"]["sha256"]}
    assert (made.options["epochs"], made.options["lr"]) == (4, 2e-3)  # of --smoke, and of the user's YAML
    assert verify(["runs"]) == 0
    assert run(["knn", *FLAGS, "--weights", "weights/tiny", "--out", "probes"]) == 0
    assert record(folder / "probes").weights_id == made.export


@pytest.mark.nightly
def test_a_recipe_of_it_in_another_folder_and_python_make_the_same_run(folder: Path, tmp_path_factory, monkeypatch):
    short = {"backbone": "tiny", "smoke": True, "threads": 1, "epochs": 1, "warmup_epochs": 0, "progress": False}
    (made,) = transfer.pretrain(NAME, **short)
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"method: {NAME}\nrecipe: cifar_deit\nlr: 2.0e-3\nepochs: 8\n")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))  # the file is found beside the YAML
    assert main([str(recipe), *SHORT, "--out", "by_recipe"]) == 0
    assert record(Path("by_recipe")).run_key == made.record.run_key
    assert record(Path("by_recipe")).scores == made.scores


def test_a_method_without_rescore_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "my_method.py").write_text(METHOD.replace("def rescore", "def score"))
    assert main([NAME, *SHORT]) in (1, 2)
    assert "the task lacks `rescore`" in capsys.readouterr().err
    assert not list(folder.glob("runs/*/record.json"))
