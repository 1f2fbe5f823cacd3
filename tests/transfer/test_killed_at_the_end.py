"""A kill between the last line of a history and the record: the command given again ends as if it had not been."""

import os
import signal
from pathlib import Path

import pytest

from tests.processes import Command
from tests.runs import assert_equal_runs, history
from transfer.records.store import Store

ALIKE = ("--smoke", "--threads", "1", "--workers", "0", "--checkpoint-seconds", "0")


def die_before_the_record() -> None:
    """Let the process be killed when its record is about to be written."""

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Store.write = killed  # type: ignore[method-assign, assignment]


@pytest.mark.nightly
def test_scores_stand_once_in_the_history(tmp_path: Path) -> None:
    """Those of the last epoch are added behind the training, whose saved state does not know them."""

    def words(folder: str) -> list[str]:
        places = ["--out", str(tmp_path / folder / "runs"), "--export-dir", str(tmp_path / folder / "weights")]
        return ["deit", "--backbone", "tiny", "--epochs", "2", "--validate-at", "1", *ALIKE, *places]

    killed = Command("transfer.pretrain", words("killed"), tmp_path / "first", prepare=die_before_the_record)
    assert killed.wait() == -signal.SIGKILL
    assert scored_epochs(tmp_path / "killed") == [1, 2]
    for folder in ("killed", "alone"):
        command = Command("transfer.pretrain", words(folder), tmp_path / f"again_{folder}")
        assert command.wait() == 0, command.stderr
    assert_equal_runs(tmp_path / "killed" / "runs", tmp_path / "alone" / "runs")
    assert scored_epochs(tmp_path / "killed") == [1, 2]


def scored_epochs(folder: Path) -> list[int]:
    """The epochs whose scores stand in the history of a run, the last of them in its last line."""
    lines = history(folder / "runs")
    assert "top1" in lines[-1]
    return [line["epoch"] for line in lines if "top1" in line]
