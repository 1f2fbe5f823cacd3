"""The lines of running cells: what they say, where they stand, and that nothing of them stays on a terminal."""

import io
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


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"step": 8, "epoch": 2.6, "loss": None}, "epoch 2.6 of 10, loss not finite"),
        ({"step": 8, "epoch": None, "loss": 1.0}, "epoch 2.5 of 10, loss 1.25"),
        ({"step": 8, "epoch": 2.6, "loss": "x"}, "epoch 2.5 of 10, loss 1.25"),
        ({"step": 8, "epoch": 10**400, "loss": 1}, "epoch 2.5 of 10, loss 1.25"),
    ],
)
def test_a_loss_that_broke_is_said_and_lines_that_no_run_writes_are_passed(
    tmp_path: Path, line: dict, said: str
) -> None:
    training(tmp_path / "runs" / "mine", epoch=2.5, seconds=100)
    with (tmp_path / "runs" / "mine" / "history.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n" + "[" * 30_000)
    command_result.announce(tmp_path / "cell.json", "mine")
    assert said in progress_line(RunningCell("reid-conv", tmp_path / "cell.json", 130.0), tmp_path / "runs")


def test_before_its_first_step_a_cell_tells_how_long_it_has_run(tmp_path: Path) -> None:
    cell = RunningCell("knn", tmp_path / "cell.json", 61.0)
    assert progress_line(cell, tmp_path) == "knn running for 61 s"
    command_result.announce(tmp_path / "cell.json", "../../etc")
    assert progress_line(cell, tmp_path) == "knn running for 61 s"
    command_result.forget(tmp_path / "cell.json")
    assert command_result.begun(tmp_path / "cell.json") == ""


def screen(text: str) -> list[str]:
    """What stands on a terminal after these characters: moves up and clears are obeyed."""
    lines = [""]
    for part in text.split("\n"):
        while part.startswith("\x1b["):
            code, _, part = part.partition("\x1b[J")
            up = int(code.removeprefix("\x1b[").removesuffix("A"))
            del lines[len(lines) - 1 - up :]
            lines.append("")
        lines[-1] += part
        lines.append("")
    return [line for line in lines if line]


def test_lines_of_running_cells_are_drawn_over_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "SECONDS_ON_TERMINAL", 0.0)
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    lines = ProgressLines(tmp_path, stream)
    cells = [RunningCell(f"cell {number} {'x' * 80}", tmp_path / f"{number}.json", 5.0) for number in range(2)]
    lines.say("[0/3] first starts")
    lines.show(cells)
    lines.say("[1/3] first completed")
    lines.show(cells[1:])
    shown = screen(stream.getvalue())
    assert shown[:2] == ["[0/3] first starts", "[1/3] first completed"]
    assert shown[2].startswith("  cell 1")
    assert len(shown[2]) < 60
    lines.show([])
    assert screen(stream.getvalue()) == ["[0/3] first starts", "[1/3] first completed"]


def test_elsewhere_they_come_once_a_minute_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    lines = ProgressLines(tmp_path, stream)
    cells = [RunningCell(f"cell {number}", tmp_path / f"{number}.json", 5.0) for number in range(MOST + 5)]
    lines.show(cells)
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress_lines, "SECONDS_ELSEWHERE", 0.0)
    lines.show(cells)
    assert stream.getvalue().splitlines()[-1] == "  and 5 more"
    assert len(stream.getvalue().splitlines()) == MOST + 1
    assert "\x1b" not in stream.getvalue()


def test_states_are_read_as_written_and_damage_is_none(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    states = [CellState("a", "waiting"), CellState("b", "failed", "ValueError: no", "run-b")]
    write_states(tmp_path, states)
    assert read_states(tmp_path) == states
    for damaged in ("", "{}", "[1]", '[{"name": "a"}]', "[\xff"):
        (tmp_path / "cells" / "states.json").write_bytes(damaged.encode("latin-1"))
        assert read_states(tmp_path) == []


def test_durations() -> None:
    assert [duration_text(seconds) for seconds in (4.4, 89, 90, 3600, 5400, 36000)] == [
        *("4 s", "89 s", "2 min", "60 min", "1.5 h", "10.0 h"),
    ]
