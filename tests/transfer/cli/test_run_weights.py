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


def test_a_run_stands_for_its_export_and_other_weights_stay(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "completed", "config.json")
    for name in (folder.name, str(folder)):
        assert weights_of_run(name, tmp_path) == str(folder / "export")
    for weights in ("config", "timm:vit.tag", "hf-hub:a/b", "some/file.pth"):
        assert weights_of_run(weights, tmp_path) == weights


@pytest.mark.parametrize(("status", "reason"), [("diverged", "ended as diverged"), ("completed", "trains no backbone")])
def test_a_run_without_weights_says_why(tmp_path: Path, status: str, reason: str) -> None:
    with pytest.raises(MissingInput, match=reason):
        weights_of_run(str(run_folder(tmp_path, status)), tmp_path)


def test_an_unfinished_run_and_a_broken_record_are_said(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "record.json").write_text("{")
    with pytest.raises(UserError, match="is not a readable record"):
        weights_of_run(folder.name, tmp_path)
    (folder / "record.json").rename(folder / "options.yaml")
    with pytest.raises(MissingInput, match="is unfinished; give its command again"):
        weights_of_run(folder.name, tmp_path)
