"""What is read from the log of a job: its progress, and its own error, not that of an earlier attempt."""

from pathlib import Path

import pytest

from transfer.sweep.job_log import failure_reason, last_line


def test_an_earlier_attempt_is_not_blamed(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("error: the disk is full\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("reid: starts\nerror: market1501: not found\n")
    assert failure_reason(1, log, start) == f"exit status 1: market1501: not found; see {log}"
    assert "not found" in failure_reason(1, log)


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [
        (-9, "", "killed by signal 9; the system's memory limit does that"),
        (143, "", "its state saved"),
        (1, "", "its log is empty"),
        (1, 'Traceback (most recent call last):\n  File "a.py"\nValueError: no such width\n', "ValueError: no such"),
        (1, "error: x: incomplete:\n  train images: expected 5, found 3\n", "x: incomplete: train images: expected 5"),
        (1, "a bar 10%\ra bar 20%\rerror: full\n", "exit status 1: full"),
    ],
)
def test_other_ends(tmp_path: Path, status: int, text: str, told: str) -> None:
    (tmp_path / "job.log").write_text(text)
    assert told in failure_reason(status, tmp_path / "job.log")


def test_the_last_line_is_the_latest_state_of_the_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    assert last_line(log) == ""
    bar = "\r\x1b[Atrain:  {}|\u2588\u258f    | 1/4 [00:10<00:30, epoch 1/4, loss 0.5]"
    log.write_text("training: 4 steps\n" + bar.format("20%") + bar.format("25%") + "\r        \r", encoding="utf-8")
    assert last_line(log) == "train: 25% 1/4 [00:10<00:30, epoch 1/4, loss 0.5]"
