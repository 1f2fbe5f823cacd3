"""The lines of running cells, and the states of all cells."""

import json
import os
import time
from pathlib import Path

import pytest

from transfer.records import command_result
from transfer.records.progress import duration_text, training_progress
from transfer.sweep import progress_lines
from transfer.sweep.definition.cell_states import CellState, read_states, write_states
from transfer.sweep.progress_lines import MOST, ProgressLines, RunningCell, progress_line


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
    progress = training_progress(tmp_path / "runs" / "mine")
    assert progress is not None
    assert progress.seconds_left == pytest.approx(100 / 2.5 * 7.5, rel=1e-3)
    command_result.announce(tmp_path / "cell.json", "mine")
    cell = RunningCell("reid-conv", tmp_path / "cell.json", 130.0)
    assert progress_line(cell, tmp_path / "runs") == "reid-conv epoch 2.5 of 10, loss 1.25, 5 min left"


def test_before_its_first_step_a_cell_tells_how_long_it_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [RunningCell(f"knn {number}", tmp_path / "cell.json", 61.0) for number in range(MOST + 5)]
    lines = ProgressLines(tmp_path)
    lines.show(cells)
    assert capsys.readouterr().err == "", "once a minute"
    monkeypatch.setattr(progress_lines, "SECONDS", 0.0)
    lines.show(cells)
    said = capsys.readouterr().err.splitlines()
    assert (said[0], said[-1], len(said)) == ("  knn 0 running for 61 s", "  and 5 more", MOST + 1)


def test_states_are_read_as_written_and_damage_is_none(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    states = [CellState("a", "waiting"), CellState("b", "failed", "ValueError: no", "run-b")]
    write_states(tmp_path, states)
    assert read_states(tmp_path) == states
    (tmp_path / "cells" / "states.json").write_text("[")
    assert read_states(tmp_path) == []


def test_durations() -> None:
    assert [duration_text(seconds) for seconds in (4.4, 89, 90, 3600, 5400, 36000)] == [
        *("4 s", "89 s", "2 min", "60 min", "1.5 h", "10.0 h"),
    ]
