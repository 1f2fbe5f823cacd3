"""Jobs that a server forks are as those that a shell starts; how they, and the server, end."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_for
from tests.runs import differences
from tests.transfer.sweep.test_runner import QUICK, STEM, jobs_of, swept
from transfer.core.process import is_alive
from transfer.launch import ProcessSpec, python_command
from transfer.launch.fork_server import JOB_MODULES, ForkServer, in_own_session
from transfer.launch.local import LocalLauncher
from transfer.sweep.runner import Sweeper

JOB = "tests.transfer.launch.job"


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLauncher]:
    """One whose server imports little."""
    monkeypatch.setattr("transfer.launch.local.GRACE_SECONDS", 1.0)
    monkeypatch.setattr("transfer.launch.fork_server.JOB_MODULES", ())
    launcher = LocalLauncher(workers=3)
    yield launcher
    launcher.close()


def started(launcher: LocalLauncher, log: Path, *words: str) -> Any:
    return launcher.start([ProcessSpec((JOB, *words), log)])[0]


def status_of(job: Any) -> int:
    wait_for(lambda: job.poll() is not None)
    return int(job.poll())


@pytest.mark.parametrize("modules", [(), pytest.param(JOB_MODULES, marks=pytest.mark.nightly)])
def test_a_fork_finds_what_a_process_of_its_own_finds(modules: tuple[str, ...], tmp_path: Path) -> None:
    """Arguments, variables, files, signals, threads, streams, warnings, and the memory that its record counts."""
    logs, words = [tmp_path / name for name in ("alone.log", "fork.log", "other.log")], (JOB, "facts", *modules)
    with logs[0].open("ab") as log:
        assert in_own_session(python_command(words, 1), log, {"SOME": "1"}).wait() == 0
        server = ForkServer(modules, log)
    assert [status_of(server.start(words, log, {"SOME": "1"})) for log in logs[1:]] == [0, 0]
    server.close()
    alone, fork, other = (json.loads(log.read_text().replace(log.name, "")) for log in logs)
    draws = [found.pop("draws") for found in (alone, fork, other)]
    assert all(len({*kind}) == 3 for kind in zip(*draws, strict=True)), "random numbers of their own"
    # the first process has its parent's `ru_maxrss`, that of the tests
    memory, peak = ([found.pop(key) for found in (alone, fork, other)] for key in ("memory", "memory since exec"))
    assert memory[1:] == pytest.approx([peak[0]] * 2, rel=0.1)
    assert alone == fork == other


ENDS = {
    "exits 3": (3, "of a thread\nthe last word\n"),
    "raises": (1, "Error: no such width\n"),
    "killed": (-9, "before\n"),
}


def test_how_jobs_end(launcher: LocalLauncher, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for words, (status, last) in ENDS.items():
        log.write_text("before\n")
        assert status_of(started(launcher, log, *words.split())) == status
        assert log.read_text().startswith("before\n")
        assert log.read_text().endswith(last)


def deaf(launcher: LocalLauncher, log: Path) -> tuple[Any, list[int]]:
    """A job that SIGTERM does not stop, and the numbers of the server, the job, and what the job has started."""
    job = started(launcher, log, "deaf")
    wait_for(lambda: log.read_text().endswith("\n"))
    assert job.poll() is None
    return job, [int(number) for number in log.read_text().split()]


def test_a_stopped_server_answers_a_killed_one_fails_its_jobs_and_jobs_of_the_next_are_killed_whole(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    lost, (server, *_) = deaf(launcher, tmp_path / "one")
    os.kill(server, signal.SIGSTOP)
    assert lost.poll() is None, "continued"
    os.kill(server, signal.SIGKILL)
    time.sleep(0.5)
    assert lost.poll() is None, "still running"
    os.killpg(lost.pid, signal.SIGKILL)
    assert status_of(lost) == -9
    _, numbers = deaf(launcher, tmp_path / "two")
    launcher.close()
    wait_for(lambda: not any(map(is_alive, numbers)))


def test_a_job_begins_anew_where_a_module_of_its_server_has_asked_for_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA cannot be used in a fork of a process that has asked how many devices there are."""
    (tmp_path / "asking.py").write_text("import torch\n\ntorch.cuda.is_available()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "log"
    with log.open("ab") as file:
        server = ForkServer(("asking",), file)
    assert status_of(server.start((JOB, "facts"), log, {"CUDA_VISIBLE_DEVICES": "0"})) == 0
    server.close()
    found = json.loads(log.read_text())
    assert (found["device"], found["leads"], found["arguments"][1:]) == ([False, False], [True, True], ["facts"])
    assert found["variables"]["CUDA_VISIBLE_DEVICES"] == "0"


BUSY = """
import os, threading
import torch

with open(__file__ + ".parents", "a") as file:
    print(os.getppid(), file=file)
threading.Thread(target=lambda: torch.ones(300, 300) @ torch.ones(300, 300)).start()
"""
KILLED = "\nimport os\n\nos.kill(os.getpid(), 9)\n"


def test_users_files_are_imported_by_their_jobs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One starts threads when it is imported, one is killed; a record is that of a job without a server."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    steps = {}
    for name, text in (("busy", BUSY), ("killed", KILLED)):
        (tmp_path / f"{name}.py").write_text(STEM.replace("BIAS", "True") + text)
        options = {**QUICK, "weights": "random", "stem": f"{tmp_path / name}.py:Stem"}
        steps[name] = {"run": "knn", "backbone": "tiny", "dataset": "toy_digits", "options": options}
    sweeper = Sweeper(tmp_path / "out", LocalLauncher(workers=2))
    sweeper.add(jobs_of(tmp_path, **steps))
    sweeper.run()
    busy, killed = sweeper.jobs.values()
    assert (busy.status, killed.status, killed.attempts) == ("completed", "failed", 2)
    assert killed.reason.startswith("killed by signal 9")
    parents = (tmp_path / "busy.py.parents").read_text().split()
    assert parents
    assert str(os.getpid()) not in parents, "the server's"
    again, _ = swept(tmp_path / "again", jobs_of(tmp_path, busy=steps["busy"]))
    assert not differences(*(progress.record for progress in (busy, *again.jobs.values())))  # type: ignore[arg-type]
