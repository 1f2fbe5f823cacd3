"""A kill between the last line of a history and the record: the command given again ends as if it had not been."""

import os
import signal
from pathlib import Path

import pytest

from tests.processes import Command
from tests.runs import assert_equal_runs, history
from transfer.records.store import Store

RUNS = {
    "reid": ("transfer.run", ("reid", "--backbone", "tiny", "--epochs", "2")),
    "deit": ("transfer.pretrain", ("deit", "--backbone", "tiny", "--epochs", "2")),
}
ALIKE = ("--smoke", "--threads", "1", "--workers", "0", "--checkpoint-seconds", "0")


def die_before_the_record() -> None:
    """Let the process be killed when its record is about to be written."""

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Store.write = killed  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("name", [*RUNS])
def test_scores_stand_once_in_the_history(name: str, tmp_path: Path) -> None:
    program, argv = RUNS[name]

    def words(folder: str) -> list[str]:
        weights = ["--weights-to", str(tmp_path / folder / "weights")] if name == "deit" else []
        return [*argv, *ALIKE, "--out", str(tmp_path / folder / "runs"), *weights]

    killed = Command(program, words("killed"), tmp_path / "first", prepare=die_before_the_record)
    assert killed.wait() == -signal.SIGKILL
    assert "top1" in history(tmp_path / "killed" / "runs")[-1] or name == "reid"  # whose scores stand in its record
    for folder in ("killed", "alone"):
        command = Command(program, words(folder), tmp_path / f"again_{folder}")
        assert command.wait() == 0, command.stderr
    assert_equal_runs(tmp_path / "killed" / "runs", tmp_path / "alone" / "runs")
