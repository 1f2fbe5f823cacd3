"""Why a cell failed: this attempt's error, with the user's file and line, and no other attempt's."""

import subprocess
import sys
from pathlib import Path

import pytest

from transfer.sweep.failures import failure_reason

STEM = "def Stem():\n    deep = 1\n    raise ValueError('no such width')\n"


def test_an_earlier_attempt_is_not_blamed(tmp_path: Path) -> None:
    log = tmp_path / "cell.log"
    log.write_text("error: the disk is full\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("reid: starts\nerror: market1501: not found\n")
    assert failure_reason(1, log, start) == f"exit status 1: market1501: not found; see {log}"
    assert "not found" in failure_reason(1, log)


def test_a_bug_in_a_users_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "my_stem.py").write_text(STEM)
    log = tmp_path / "cell.log"
    done = subprocess.run([sys.executable, "-c", "import my_stem; my_stem.Stem()"], cwd=tmp_path, capture_output=True)
    log.write_bytes(done.stderr)
    assert failure_reason(1, log) == f"exit status 1: ValueError: no such width (my_stem.py, line 3); see {log}"
    log.write_bytes(b"error: " + done.stderr)
    assert "ValueError: no such width (my_stem.py, line 3)" in failure_reason(1, log)


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [
        (-9, "", "killed by signal 9; the system's memory limit does that"),
        (143, "", "its state saved"),
        (1, "", "its log is empty"),
        (1, "no colon here\n", "no colon here"),
        (1, "a bar 10%\ra bar 20%\rerror: full\n", "exit status 1: full"),
        (2, "wrong flag --leer\nFor full helptext, run it\n", "wrong flag --leer"),
    ],
)
def test_other_ends(tmp_path: Path, status: int, text: str, told: str) -> None:
    (tmp_path / "cell.log").write_text(text)
    assert told in failure_reason(status, tmp_path / "cell.log")


def test_a_log_that_is_gone_or_huge_is_no_obstacle(tmp_path: Path) -> None:
    assert "its log is empty" in failure_reason(1, tmp_path / "none.log")
    with (tmp_path / "huge.log").open("wb") as file:
        file.write(b"a line of progress\n" * 200_000 + b"error: the last one\n")
    assert "the last one" in failure_reason(1, tmp_path / "huge.log")
