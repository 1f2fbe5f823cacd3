"""Weights that changed after they were written, or do not fit: refused; where they are allowed, said and recorded."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import transfer
from backbones.backbone import create
from backbones.weights.export import export
from transfer.core.exports import CONFIG, PRETRAIN, WEIGHTS
from transfer.run import main as run

FACTS = {"run": "pretrain-a", "identity": "a" * 64, "protocol": "b" * 64, "seed": 0, "smoke": True}
QUICK = ["--smoke", "--threads", "1", "--workers", "0", "--device", "cpu"]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return export(create("tiny"), tmp_path / "weights", {PRETRAIN: FACTS})


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(words) == 1
    return capsys.readouterr().err


def test_changed_weights_are_refused_and_keep_their_marks_where_they_are_allowed(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(weights / WEIGHTS)
    save_file({name: value * 1.5 for name, value in tensors.items()}, weights / WEIGHTS, {"format": "pt"})
    command = ["knn", "--backbone", "tiny", "--weights", str(weights), *QUICK, "--out", str(tmp_path / "runs")]
    said = f"{WEIGHTS}: not the file that was exported"
    assert said in refused(command, capsys)
    assert said in refused(["knn", "--backbone", str(weights), *command[5:]], capsys), "no random ones in their place"
    (weights / CONFIG).unlink()
    assert run([*command, "--allow-modified", "--weights-size", "224", "224"]) == 0
    (record,) = [one.record for one in transfer.load(tmp_path / "runs")]
    assert record.origin["modified"]
    assert record.origin["smoke"]


def test_what_is_taken_of_a_file_is_said_and_recorded_and_what_is_dropped_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = create("tiny", img_size=96).model.state_dict() | {"blocks.0.ls1.gamma": torch.ones(64)}
    torch.save(state, tmp_path / "w.pth")
    command = ["knn", "--backbone", "vit_tiny", "--weights", str(tmp_path / "w.pth"), "--load", "partial", *QUICK]
    command += ["--out", str(tmp_path / "runs"), "--weights-size", "96", "96"]
    assert "without a place in the model: blocks.*.ls1. " in refused(command, capsys)
    assert run([*command, "--allow-dropped", "--load", "strict"]) == 2
    assert run([*command, "--allow-dropped"]) == 0
    line = (
        f"weights {tmp_path}/w.pth: plain state dict; positions 6 x 6 -> 2 x 2; mean and std of ImageNet, not known to "
        "be this file's (--mean, --std); dropped: blocks.*.ls1"
    )
    assert line in " ".join(capsys.readouterr().err.split())
    (record,) = [one.record for one in transfer.load(tmp_path / "runs")]
    assert line in record.notes
    assert record.details["weights"]["dropped"] == ["blocks.*.ls1"]
    assert record.backbone["mean"] == [0.485, 0.456, 0.406]
    assert "allow_dropped" not in record.run_key_content["backbone"]
    assert run(command) == 0, "reused"
