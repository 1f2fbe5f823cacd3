"""Real faults of the machine, in processes of their own: each ends in one line, with exit status 1, its state kept."""

import multiprocessing
import os
import re
import signal
from pathlib import Path

import pytest

from tests.processes import Command, wait_for
from tests.runs import steps
from transfer.run import main

RUN = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--lr", "3e-3", "--warmup-epochs", "0"]


def fork_loaders() -> None:
    """Start loader processes as a command of its own does, and not by another server."""
    multiprocessing.set_start_method("fork", force=True)


def loaders(pid: int) -> list[int]:
    """The processes that a process has forked and that run its own program."""
    program = Path(f"/proc/{pid}/cmdline").read_bytes()
    children = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return [int(child) for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == program]


def test_out_of_memory_in_evaluation_goes_on_with_a_smaller_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training is not repeated: its state is kept, and the batch of evaluation is no part of the run's identity."""
    flags = [*RUN, "--workers", "0", "--epochs", "1", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr("tasks.reid.training.ReidLearner.encode", lambda *given: bytearray(2**62))
        assert main([*flags, "--eval-batch-size", "64"]) == 1
    said = capsys.readouterr().err
    assert re.search(
        "out of memory on this machine: .* a smaller --eval-batch-size to score; the last checkpoint is", said
    )
    assert main([*flags, "--eval-batch-size", "32"]) in (0, 3)
    assert "resuming after step" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_loader_that_was_killed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    flags = [*RUN, "--workers", "1", "--epochs", "400", "--checkpoint-seconds", "0", "--out", str(runs)]
    command = Command("transfer.run", flags, tmp_path / "log", prepare=fork_loaders)
    wait_for(lambda: steps(runs) > 1)
    os.kill(loaders(command.pid)[0], signal.SIGKILL)
    assert command.wait() == 1
    assert "Traceback" not in command.stderr
    assert "a loader process was killed, in most cases because the machine's memory ran out" in command.stderr
    assert [*runs.glob("*/state.pt")]
