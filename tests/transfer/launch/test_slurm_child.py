"""What runs inside a Slurm job: the command line on each node, and a child that saves its state when told to stop."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import wait_for
from transfer.launch import ProcessSpec
from transfer.launch.slurm_child import Child, Process


def test_torchrun_is_used_for_several_ranks_alone() -> None:
    def command(nodes: int, processes: int, node: int = 0) -> str:
        process = ProcessSpec(("transfer.run", "reid"), Path(), {"nodes": nodes, "gpus": processes})
        python, *words = Child(process, Path()).command(node, ["a1", "a2"], 12345678)
        assert python == sys.executable
        return " ".join(words)

    assert command(1, 1) == "-m transfer.run reid"
    assert command(1, 2) == "-m torch.distributed.run --standalone --nproc-per-node 2 -m transfer.run reid"
    meeting = "--master-addr a1 --master-port 25678 --nproc-per-node 8 -m transfer.run reid"
    for node in (0, 1):
        expected = f"-m torch.distributed.run --nnodes 2 --node-rank {node} {meeting}"
        assert command(2, 8, node) == expected


CHILD = """
import signal, sys, time
def stop(number, frame):
    time.sleep(0.5)  # while it saves its state
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def process(tmp_path: Path) -> Process:
    started = Process([sys.executable, "-c", CHILD], tmp_path / "log", tmp_path, dict(os.environ))
    wait_for(lambda: "ready" in (tmp_path / "log").read_text())
    return started


def test_a_child_saves_its_state_before_it_stops(process: Process, tmp_path: Path) -> None:
    process.stop()
    process.stop()  # one signal, not two
    assert process.wait() == 143
    assert not process.finished
    assert "saved" in (tmp_path / "log").read_text()


def test_slurms_notice_does_not_kill_the_child(process: Process) -> None:
    os.kill(process._process.pid, signal.SIGUSR2)
    process.wait(0.5)
    assert process.status is None
    process.stop()
    assert process.wait() == 143
