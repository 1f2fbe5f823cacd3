"""Real faults of the machine, in processes of their own: each ends in one line, with exit status 1, its state kept."""

import multiprocessing
import os
import re
import signal
from pathlib import Path

import pytest

import transfer
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
        patch.setattr("tasks.reid.ReidLearner.encode", lambda *given: bytearray(2**62))
        assert main([*flags, "--eval-batch", "64"]) == 1
    said = capsys.readouterr().err
    assert re.search("out of memory on this machine: .* a smaller --eval-batch to score; the last saved state is", said)
    assert main([*flags, "--eval-batch", "32"]) in (0, 3)
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


@pytest.mark.nightly
def test_python_gets_the_same_line_and_the_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two seeds the first one runs out of memory: the error has one line, and the second seed has its record."""
    from tasks.reid import ReidLearner

    forward, failed = ReidLearner.forward, list[int]()

    def full(self: ReidLearner, batch: object, step: int) -> object:
        if not failed:
            failed.append(step)
            bytearray(2**62)
        return forward(self, batch, step)  # type: ignore[arg-type]

    monkeypatch.setattr(ReidLearner, "forward", full)
    with pytest.raises(transfer.RunsFailed) as raised:
        transfer.evaluate("reid", backbone="tiny", smoke=True, threads=1, workers=0, epochs=1, warmup_epochs=0, lr=3e-3,
                          seeds=[0, 1], out=tmp_path, progress=False)  # fmt: skip
    assert len(raised.value.runs) == 1
    (failure,) = raised.value.failures
    assert type(failure.error) is transfer.MachineError
    assert str(failure.error).startswith("out of memory on this machine: set more --grad-accum-steps")
    assert "\n" not in str(raised.value)
