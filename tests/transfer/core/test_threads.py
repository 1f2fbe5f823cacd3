import os
from pathlib import Path

import pytest
import torch

from tests.support import context
from transfer.core.process import SIDE_BY_SIDE, SMALL, Ranks, Threads, choose_threads, core_limit, wait_asleep
from transfer.engine.context import auto_threads

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NO_GROUPS = Path("/nowhere")


def test_what_is_asked_for_comes_first() -> None:
    spelt = {"OMP_NUM_THREADS": "3,2"}
    assert choose_threads(5, 8, "8 cores", environment=spelt) == Threads(5, "--threads", True)
    assert choose_threads(None, 8, "8 cores", environment=spelt) == Threads(3, "OMP_NUM_THREADS", True)
    for nothing in ({}, {"OMP_NUM_THREADS": ""}, {"OMP_NUM_THREADS": "many"}, {"OMP_NUM_THREADS": "0"}):
        assert choose_threads(None, 8, "8 cores", environment=nothing) == Threads(8, "8 cores")


def test_a_1_that_torchrun_has_set_says_nothing() -> None:
    """torchrun sets OMP_NUM_THREADS to 1 where it is not set."""
    one = {"OMP_NUM_THREADS": "1"}
    assert choose_threads(None, 8, "", under_torchrun=True, environment=one).count == 8
    assert choose_threads(None, 8, "", under_torchrun=True, environment={"OMP_NUM_THREADS": "2"}).count == 2
    assert choose_threads(None, 8, "", environment=one).count == 1


def test_tests_and_cells_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert core_limit({"PYTEST_XDIST_WORKER_COUNT": "4"}, NO_GROUPS) == (4, "16 cores, shared by 4 tests")
    both = {"PYTEST_XDIST_WORKER_COUNT": "2", SIDE_BY_SIDE: "3"}
    assert core_limit(both, NO_GROUPS)[0] == 2
    assert core_limit({SIDE_BY_SIDE: "40"}, NO_GROUPS)[0] == 1


def test_the_least_quota_of_nested_groups_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    groups = tmp_path / "cgroup"
    groups.write_text("0::/pod/box/inner\n")
    for group, quota in (("pod", "250000 100000"), ("pod/box", "max 100000"), ("pod/box/inner", "600000 100000")):
        (tmp_path / "fs" / group).mkdir(parents=True)
        (tmp_path / "fs" / group / "cpu.max").write_text(quota)
    assert core_limit({}, groups, tmp_path / "fs") == (2, "a quota of 2.5 cores")


def test_ranks_and_loader_processes_take_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfer.engine.context.core_limit", lambda: (16, "16 cores"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    two = Ranks(0, 2, 0, 2)
    chosen = auto_threads(None, CPU, two, workers=2)
    assert (chosen.count, chosen.reason) == (6, "16 cores, shared by 2 ranks, without 2 of the loader")
    assert auto_threads(None, GPU, two, workers=2).count == 8
    assert auto_threads(7, CPU, two, workers=2).count == 7


def test_a_small_model_gets_one_thread_unless_others_are_asked_for() -> None:
    free = Threads(8, "8 cores")
    assert free.for_model(SMALL) is free
    assert free.for_model(SMALL / 2).count == 1
    assert "too small" in free.for_model(SMALL / 2).reason
    asked = Threads(8, "--threads", requested=True)
    assert asked.for_model(1.0) is asked


def test_the_number_is_set_recorded_and_said_where_it_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    before, here = torch.get_num_threads(), context(threads=Threads(2, "2 cores"))
    try:
        for work, count in ((SMALL, 2), (SMALL, 2), (1.0, 1)):
            here._settle_threads(work)
            assert torch.get_num_threads() == count
        assert here.threads_why is not None
        assert "too small for 2" in here.threads_why
    finally:
        torch.set_num_threads(before)
    said = capsys.readouterr().err
    assert said.count("threads: ") == said.count("threads: 1 (") == 1, "2 is said before"


def test_waiting_threads_sleep_unless_something_else_is_said() -> None:
    free: dict[str, str] = {}
    wait_asleep(free)
    assert free == {"OMP_WAIT_POLICY": "passive"}
    for said in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "10"}, {"KMP_BLOCKTIME": "0"}):
        kept = dict(said)
        wait_asleep(kept)
        assert kept == said
