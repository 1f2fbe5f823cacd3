"""What a process is told: whom to end with, its place in a distributed job, its threads."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from tests.processes import wait_for
from tests.support import context
from transfer.core import process
from transfer.core.errors import UsageError
from transfer.core.process import (
    ALONE,
    PARENT,
    SIDE_BY_SIDE,
    SMALL_WORK,
    Ranks,
    Threads,
    core_limit,
    end_with_parent,
    ranks_from_environment,
    wait_asleep,
)
from transfer.engine.context import auto_threads


def test_sigterm_comes_when_the_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen(["sleep", "60"])
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    monkeypatch.setattr(process, "SECONDS", 0.01)
    monkeypatch.setenv(PARENT, str(other.pid))
    try:
        end_with_parent()
        assert PARENT not in os.environ, "what this process starts has its own to end with"
        with pytest.raises(AssertionError):
            wait_for(lambda: got, seconds=0.3)
        other.kill()  # it has ended before its status is asked for
        wait_for(lambda: got, seconds=20)
    finally:
        other.kill()
        other.wait()
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]


JOB = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
JOB |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29700"}


@pytest.mark.parametrize(
    ("left", "found"),
    [
        ({}, Ranks()),
        (dict.fromkeys(JOB, ""), Ranks()),
        ({"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29700"}, Ranks()),
        ({"RANK": "3", "LOCAL_RANK": "3"}, Ranks()),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Ranks()),
        (JOB, Ranks(1, 2, 1, 2)),
        ({"WORLD_SIZE": "2"}, "^WORLD_SIZE=2, but not RANK, MASTER_ADDR, MASTER_PORT, is set; for one process `unset"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": ""}, "^WORLD_SIZE=2, but not MASTER_ADDR, MASTER_PORT, is"),
        ({"WORLD_SIZE": "abc", "LOCAL_RANK": "0"}, "variable WORLD_SIZE=abc describes no distributed job"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        (JOB | {"RANK": "2"}, "RANK=2"),
        (JOB | {"LOCAL_RANK": "-1"}, "LOCAL_RANK=-1"),
    ],
)
def test_a_job_of_torchrun_and_none(left: dict[str, str], found: Ranks | str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JOB:
        monkeypatch.delenv(name, raising=False)
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    if isinstance(found, Ranks):
        assert ranks_from_environment() == found
    else:
        with pytest.raises(UsageError, match=found):
            ranks_from_environment()


CPU, GPU = torch.device("cpu"), torch.device("cuda")
TWO = Ranks(0, 2, 0, 2)


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a process without a quota, beside no other tests."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(process, "GROUPS", tmp_path / "cgroup")
    for name in (SIDE_BY_SIDE, *process.WAITING, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


ASKED = [
    (5, "3,2", ALONE, 0, Threads(5, "--threads", True)),
    (None, "3,2", ALONE, 0, Threads(3, "OMP_NUM_THREADS", True)),
    *((None, nothing, ALONE, 0, Threads(16, "16 cores")) for nothing in ("", "many", "0")),
    (None, "1", ALONE, 0, Threads(1, "OMP_NUM_THREADS", True)),
    (None, "1", TWO, 0, Threads(8, "16 cores, shared by 2 ranks")),  # torchrun sets it where it is not set
    (None, "2", TWO, 0, Threads(2, "OMP_NUM_THREADS", True)),
    (None, "", TWO, 2, Threads(6, "16 cores, shared by 2 ranks, without 2 of the loader")),
    (None, "", ALONE, 16, Threads(1, "16 cores, without 16 of the loader")),
]


@pytest.mark.parametrize(("given", "variable", "ranks", "workers", "threads"), ASKED)
def test_threads(given, variable, ranks, workers: int, threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for comes first; ranks, and loader processes on a CPU, take their share."""
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert auto_threads(given, CPU, ranks, workers) == threads
    assert threads.requested or auto_threads(given, GPU, ranks, workers).count == 16 // ranks.local_world


@pytest.mark.parametrize(("cells", "cores"), [("", 16), ("3", 5), ("40", 1)])
def test_cells_side_by_side_share_the_cores(cells: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIDE_BY_SIDE, cells)
    limit, reason = core_limit()
    assert limit == cores
    assert ("shared by 3 cells" in reason) == (cells == "3")


def test_the_least_quota_of_nested_groups_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process.GROUPS.write_text("0::/pod/box/inner\n")
    monkeypatch.setattr(process, "GROUPS_ROOT", tmp_path)
    for group, quota in (("pod", "250000 100000"), ("pod/box", "max 100000"), ("pod/box/inner", "600000 100000")):
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / "cpu.max").write_text(quota)
    assert core_limit() == (2, "a quota of 2.5 cores")


def test_a_small_model_gets_one_thread_unless_others_are_asked_for() -> None:
    free = Threads(8, "8 cores")
    assert free.for_model(SMALL_WORK) is free
    assert free.for_model(SMALL_WORK / 2).count == 1
    assert "too small" in free.for_model(SMALL_WORK / 2).reason
    asked = Threads(8, "--threads", requested=True)
    assert asked.for_model(1.0) is asked


def test_the_number_is_set_recorded_and_said_where_it_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    before, here = torch.get_num_threads(), context(threads=Threads(2, "2 cores"))
    try:
        for work, count in ((SMALL_WORK, 2), (SMALL_WORK, 2), (1.0, 1)):
            here._settle_threads(work)
            assert torch.get_num_threads() == count
        assert here.threads_why is not None
        assert "too small for 2" in here.threads_why
    finally:
        torch.set_num_threads(before)
    said = capsys.readouterr().err
    assert said.count("threads: ") == said.count("threads: 1 (") == 1, "2 is said before"


@pytest.mark.parametrize("said", ["", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_waiting_threads_sleep_unless_something_else_is_said(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {said: "10"})
    wait_asleep()
    assert os.environ == {said: "10"} | ({} if said else {"OMP_WAIT_POLICY": "passive"})
