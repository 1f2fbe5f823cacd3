"""`--weights` with the id or the folder of a run."""

import json
from pathlib import Path

import pytest

from backbones.errors import MissingInput, UserError
from transfer.cli.run_weights import weights_of_run


def run_folder(out: Path, status: str = "completed", *files: str) -> Path:
    folder = out / "reid-toy-tiny-0123456789ab"
    (folder / "export").mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"outcome": {"status": status}, "weights_id": "sha256:00"}))
    for file in files:
        (folder / "export" / file).write_text("{}")
    return folder


@pytest.mark.parametrize("by_id", [True, False])
def test_a_run_stands_for_its_export(tmp_path: Path, by_id: bool) -> None:
    folder = run_folder(tmp_path, "completed", "config.json")
    assert weights_of_run(folder.name if by_id else str(folder), tmp_path) == str(folder / "export")


@pytest.mark.parametrize("weights", ["config", "random", "timm:vit.tag", "hf-hub:a/b", "file.pth", "some/file.pth"])
def test_other_weights_stay(tmp_path: Path, weights: str) -> None:
    assert weights_of_run(weights, tmp_path) == weights


def test_an_unfinished_run_is_said(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "record.json").rename(folder / "options.yaml")
    with pytest.raises(MissingInput, match="is unfinished; give its command again"):
        weights_of_run(folder.name, tmp_path)


@pytest.mark.parametrize(
    ("status", "files", "reason"),
    [
        ("diverged", (), "its training ended as diverged"),
        ("completed", (), "its task trains no backbone, or it was made with --save-weights none"),
    ],
)
def test_a_run_without_weights_says_why(tmp_path: Path, status: str, files: tuple[str, ...], reason: str) -> None:
    folder = run_folder(tmp_path, status, *files)
    with pytest.raises(MissingInput, match=reason):
        weights_of_run(str(folder), tmp_path)


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "record.json").write_text("{")
    with pytest.raises(UserError, match="is not a readable record"):
        weights_of_run(folder.name, tmp_path)
