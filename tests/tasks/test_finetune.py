from pathlib import Path

from tests.runs import record
from transfer.records.record import Record
from transfer.run import main

WORDS = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]


def run(out: Path, task: str, *words: str) -> Record:
    """The record of a run that must succeed."""
    assert main([task, *WORDS, "--out", str(out), *words]) == 0
    return record(out)


def test_it_learns_and_others_start_from_what_it_leaves_and_record_its_hash(tmp_path: Path) -> None:
    first = run(tmp_path / "first", "finetune", "--subset", "60", "--epochs", "8", "--lr", "2e-3", "--sam", "sam")
    assert 0.5 < first.scores["top1"] < first.scores["top5"]
    assert any("starts from random weights" in note for note in first.notes)
    words = ["--weights", str(next((tmp_path / "first").glob("*/export"))), "--epochs", "1"]
    again = run(tmp_path / "again", "finetune", *words, "--subset", "10")
    assert not any("random weights" in note for note in again.notes)
    reid = run(tmp_path / "reid", "reid", *words, "--warmup-epochs", "0")
    assert first.export.startswith("sha256:")
    assert again.weights_id == reid.weights_id == first.export
