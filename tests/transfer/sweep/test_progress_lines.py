"""The lines of running jobs."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.transfer.sweep.test_runner import jobs_of
from transfer.records import command_result
from transfer.sweep import progress_lines
from transfer.sweep.progress_lines import MOST, ProgressLines, progress_of


def training(folder: Path, *, epoch: float, seconds: float) -> None:
    """A run of ten epochs that began some seconds ago and has written its last step now."""
    folder.mkdir(parents=True)
    (folder / "options.yaml").write_text("epochs: 10\n")
    (folder / "history.jsonl").write_text(json.dumps({"step": 7, "epoch": epoch, "loss": 1.25}) + "\n")
    now = time.time()
    os.utime(folder / "options.yaml", (now - seconds, now - seconds))
    os.utime(folder / "history.jsonl", (now, now))


def test_a_training_tells_its_epoch_its_loss_and_the_time_left(tmp_path: Path) -> None:
    training(tmp_path / "runs" / "mine", epoch=2.5, seconds=100)
    (tmp_path / "jobs").mkdir()
    command_result.announce(tmp_path / "jobs" / "reid-conv.json", "mine")
    assert progress_of("reid-conv", 130.0, tmp_path) == "epoch 2.5 of 10, loss 1.25, 5 min left"


def test_before_its_first_step_a_job_tells_how_long_it_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {"knn": {"run": "knn", "backbone": "tiny", "dataset": "toy_digits", "seeds": [*range(MOST + 5)]}}
    running = [(job, time.monotonic() - 61.0) for job in jobs_of(tmp_path, **steps)]
    lines = ProgressLines(tmp_path)
    lines.show(running)
    assert capsys.readouterr().err == "", "once a minute"
    monkeypatch.setattr(progress_lines, "SECONDS", 0.0)
    lines.show(running)
    said = capsys.readouterr().err.splitlines()
    assert (said[0], said[-1], len(said)) == ("  knn on toy_digits, seed 0: running for 61 s", "  and 5 more", MOST + 1)
