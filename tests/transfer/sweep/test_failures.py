"""Why a job failed: this attempt's error, not that of an earlier one."""

from pathlib import Path

import pytest

from transfer.sweep.failures import failure_reason


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
        (1, "a bar 10%\ra bar 20%\rerror: full\n", "exit status 1: full"),
    ],
)
def test_other_ends(tmp_path: Path, status: int, text: str, told: str) -> None:
    (tmp_path / "job.log").write_text(text)
    assert told in failure_reason(status, tmp_path / "job.log")
