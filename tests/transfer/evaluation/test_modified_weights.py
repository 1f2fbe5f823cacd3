"""Exported weights that changed after they were written: refused; where they are allowed, never mixed with others."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import transfer
from backbones.backbone import create
from backbones.checkpoints.exports import CONFIG, PRETRAIN, WEIGHTS, export
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
    assert run([*command, "--allow-modified"]) == 0
    (record,) = [one.record for one in transfer.load(tmp_path / "runs")]
    assert record.origin["modified"]
    assert record.origin["smoke"]
