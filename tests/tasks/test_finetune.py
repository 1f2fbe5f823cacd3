from pathlib import Path

import pytest

from transfer.records.record import Record
from transfer.run import main

WORDS = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]


def run(out: Path, task: str, *words: str) -> Path:
    """The folder of a run that must succeed."""
    assert main([task, *WORDS, "--out", str(out), *words]) == 0
    (folder,) = out.glob(f"{task}-*")
    return folder


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned `tiny`."""
    words = ["--subset", "60", "--epochs", "8", "--lr", "2e-3", "--sam", "sam"]
    return run(tmp_path_factory.mktemp("runs"), "finetune", *words)


def test_it_learns(finetuned: Path) -> None:
    record = Record.read(finetuned / "record.json")
    assert record.scores["top1"] > 0.5
    assert record.scores["top1"] < record.scores["top5"]
    assert any("starts from random weights" in note for note in record.notes)


def test_other_tasks_start_from_what_it_leaves_and_record_its_hash(finetuned: Path) -> None:
    record = Record.read(finetuned / "record.json")
    words = ["--weights", str(finetuned / "export")]
    again = run(finetuned.parent / "again", "finetune", *words, "--subset", "10", "--epochs", "1")
    reid = run(finetuned.parent, "reid", *words, "--epochs", "1", "--warmup-epochs", "0")
    for folder in (again, reid):
        assert Record.read(folder / "record.json").weights_id == record.export
    assert record.export is not None
    assert record.export.startswith("sha256:")
    notes = Record.read(again / "record.json").notes
    assert not any("random weights" in note for note in notes)
