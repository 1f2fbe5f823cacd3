"""Exported weights that changed after they were written: refused; where they are allowed, never mixed with others."""

import json
from collections.abc import Callable
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


def change_tensors(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name: value * 1.5 for name, value in tensors.items()}, folder / WEIGHTS, {"format": "pt"})


@pytest.mark.parametrize("file", [WEIGHTS, CONFIG])
def test_a_smoke_run_does_not_take_random_ones_in_their_place(
    file: str, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if file == WEIGHTS:
        change_tensors(weights)
    else:
        text = (weights / CONFIG).read_text()
        assert "0.485" in text
        (weights / CONFIG).write_text(text.replace("0.485", "0.585"))
    assert run(["knn", "--backbone", str(weights), *QUICK, "--out", str(tmp_path / "runs")]) == 1
    assert f"{file}: not the file that was exported" in capsys.readouterr().err
    assert not [*(tmp_path / "runs").glob("*/record.json")]


def without_configuration(folder: Path) -> Path:
    (folder / CONFIG).unlink()
    return folder


@pytest.mark.parametrize(("change", "named"), [(without_configuration, CONFIG)])
def test_files_that_the_facts_beside_them_do_not_name_are_refused_and_keep_their_marks_where_they_are_allowed(
    change: Callable[[Path], Path], named: str, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = change(weights)
    command = ["knn", "--backbone", "tiny", "--weights", str(given), *QUICK, "--out", str(tmp_path / "runs")]
    assert run(command) == 1
    assert f"{named}: not the file that was exported" in capsys.readouterr().err
    assert run([*command, "--allow-modified"]) == 0
    (record,) = [one.record for one in transfer.load(tmp_path / "runs")]
    assert record.origin["modified"]
    assert record.origin["smoke"]


def with_facts(change: Callable[[dict[str, object]], dict[str, object]]) -> Callable[[Path], None]:
    """Return what changes the content of `pretrain.json`."""
    return lambda file: file.write_text(json.dumps(change(json.loads(file.read_text())))) and None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_facts(lambda facts: {}), "not a description of a run"),
        (with_facts(lambda facts: facts | {"files": {}}), "`files` does not give"),
        (with_facts(lambda facts: facts | {"schema": 2}), "`schema` is 2"),
    ],
)
def test_facts_that_are_not_whole_are_refused_by_name(
    change: Callable[[Path], None], reason: str, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_tensors(weights)
    change(weights / PRETRAIN)
    assert run(["knn", "--backbone", "tiny", "--weights", str(weights), *QUICK, "--out", str(tmp_path / "runs")]) == 1
    said = capsys.readouterr().err
    assert f"{PRETRAIN}: " in said
    assert reason in said
