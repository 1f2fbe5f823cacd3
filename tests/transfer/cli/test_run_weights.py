"""`--weights` with the id or the folder of a run."""

import json
from pathlib import Path

import pytest

from tests.support import command
from transfer.cli.command import weights_of_run
from transfer.core.errors import MissingInput, UserError
from transfer.run import each_weights


def run_folder(out: Path, status: str = "completed", *files: str, **options: str) -> Path:
    folder = out / "reid-toy-tiny-0123456789ab"
    (folder / "export").mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"outcome": {"status": status}, "options": options}))
    for file in files:
        (folder / "export" / file).write_text("{}")
    return folder


def test_a_run_stands_for_its_export_and_other_weights_stay(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "completed", "config.json")
    for name in (folder.name, str(folder)):
        assert weights_of_run(name, tmp_path) == str(folder / "export")
    for weights in ("config", "timm:vit.tag", "hf-hub:a/b", "some/file.pth"):
        assert weights_of_run(weights, tmp_path) == weights
    with pytest.raises(MissingInput, match=f"no such run in .*did you mean '{folder.name}'"):
        weights_of_run(f"{folder.name[:-1]}c", tmp_path)


@pytest.mark.parametrize(
    ("status", "kept", "reason"),
    [
        ("diverged", "none", "training ended as diverged"),
        ("completed", "last", "it trained no backbone"),
        ("completed", "none", "it was made with --save-weights none"),
    ],
)
def test_a_run_without_weights_says_why(tmp_path: Path, status: str, kept: str, reason: str) -> None:
    with pytest.raises(MissingInput, match=f"{reason}$"):
        weights_of_run(str(run_folder(tmp_path, status, save_weights=kept)), tmp_path)


def test_an_unfinished_run_and_a_broken_record_are_said(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "record.json").write_text("{")
    with pytest.raises(UserError, match="is not a readable record"):
        weights_of_run(folder.name, tmp_path)
    (folder / "record.json").rename(folder / "options.yaml")
    with pytest.raises(MissingInput, match="is unfinished; rerun its command"):
        weights_of_run(folder.name, tmp_path)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--backbone tiny --weights a b --seeds 3 4", [("a", (3,)), ("b", (4,))]),
        ("--backbone tiny --weights a b --seeds 3", [("a", (3,)), ("b", (3,))]),
        ("--backbone tiny --weights a --seeds 3 4", [("a", (3, 4))]),
        ("--backbone vit_tiny --seeds 0 1 2", [(f"weights/vit_tiny/seed{n}", (s,)) for s, n in enumerate((0, 2, 10))]),
        ("--backbone weights/vit_tiny", [(f"weights/vit_tiny/seed{n}", (0,)) for n in (0, 2, 10)]),
    ],
)
def test_several_weights(
    words: str, expected: list[tuple[str, tuple[int, ...]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 2, 10):
        (tmp_path / f"weights/vit_tiny/seed{seed}").mkdir(parents=True)
        (tmp_path / f"weights/vit_tiny/seed{seed}/config.json").write_text('{"architecture": "vit_tiny"}')
    commands = each_weights(command("knn", "--dataset", "toy_digits", *words.split()), from_scratch=False)
    assert [(*one.backbone.weights, one.run.seeds) for one in commands] == expected
