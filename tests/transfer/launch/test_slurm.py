"""Jobs of a Slurm cluster. Where a node is idle, with a real one; the rest needs none."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wait_for
from tests.runs import assert_equal_runs
from tests.transfer.test_run_processes import WORDS
from transfer.core.errors import UserError
from transfer.launch import ProcessSpec, slurm
from transfer.launch.slurm import Queue, SlurmJob, SlurmLauncher, without_launch
from transfer.launch.slurm_child import Child, Process, sbatch_parameters
from transfer.run import main
from transfer.sweep.__main__ import main as sweep


def idle_node() -> str:
    """Why there is no Slurm to try, empty when there is."""
    try:
        said = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "no Slurm that answers"
    return "" if "idle" in said.split() else "no idle Slurm node"


REASON = idle_node()
real_slurm = pytest.mark.skipif(bool(REASON), reason=REASON)


def tool(folder: Path, name: str, text: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def cancelled_at_last(tmp_path: Path) -> Iterator[None]:
    """Ends the jobs that a failed test has left."""
    yield
    for path in tmp_path.rglob("*_submitted.pkl"):
        subprocess.run(["scancel", path.name.removesuffix("_submitted.pkl")], capture_output=True)


# words


def test_the_job_gets_the_words_without_the_launchers() -> None:
    words = ["reid", "--backbone", "tiny", "--launcher", "slurm", "--nodes=2", "--memory_gb", "3.5", "--lr", "1e-3"]
    assert without_launch([*words, "--gpus", "8", "--smoke"]) == [*words[:3], "--lr", "1e-3", "--smoke"]


# resources


def test_what_slurm_is_asked_for() -> None:
    given = {"gpus": 8, "nodes": 2, "memory_gb": 1.5, "cpus": 4, "minutes": 90, "partition": "long"}
    asked = sbatch_parameters(given | {"extra": {"mail-user": "me"}}, 7)
    wanted = {"gpus_per_node": 8, "nodes": 2, "mem": "1536MB", "time": 90, "partition": "long", "array_parallelism": 7}
    wanted |= {"srun_args": ["--cpus-per-task=4"], "additional_parameters": {"requeue": True, "mail-user": "me"}}
    assert {name: asked[name] for name in wanted} == wanted
    assert "gpus_per_node" not in sbatch_parameters({"gpus": 0}, 1)
    assert sbatch_parameters({"minutes": 1}, 1)["signal_delay_s"] < 60


# without Slurm


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    out = tmp_path / "runs"
    assert main(["reid", "--backbone", "tiny", "--smoke", "--launcher", "slurm", "--out", str(out)]) == 1
    assert "sbatch not found; run the command on a machine of a Slurm cluster" in capsys.readouterr().err
    assert not out.exists()


def test_a_silent_slurm_refuses_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "squeue"):
        tool(tmp_path, name, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match="Unable to contact slurm controller"):
        SlurmLauncher(tmp_path / "jobs").start([ProcessSpec(("this",), tmp_path / "log")])


def test_a_sweep_whose_jobs_slurm_rejects_says_what_to_change(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("squeue", "srun"):
        tool(here, name)
    tool(here, "sbatch", "echo 'sbatch: error: Invalid generic resource (gres) specification' >&2; exit 1")
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    command = "bench --tier smoke --stem conv --against patchify --tasks fewshot --launcher slurm"
    assert sweep(command.split()) == 1
    said = capsys.readouterr()
    assert "--gpus says how many GPUs a job asks for" in said.err
    assert "not shown" not in said.out, "without a run there is nothing to compare"


@pytest.mark.parametrize(
    ("state", "why", "status", "reason"),
    [
        ("PENDING", "Resources", None, ""),
        ("PENDING", "PartitionConfig", 1, "would never start"),
        ("RUNNING", "None", None, ""),
        ("CANCELLED", "None", 143, "ended as CANCELLED"),
        ("OUT_OF_MEMORY", "OutOfMemory", -9, "ended as OUT_OF_MEMORY"),
        ("NODE_FAIL", "NodeDown", 1, "ended as NODE_FAIL"),
    ],
)
def test_what_becomes_of_a_job_without_a_result(
    state: str, why: str, status: int | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, "squeue", f"echo '7_1|{state}|{why}'")
    tool(tmp_path, "scancel")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(slurm, "RESULT_SECONDS", 0.0)
    job = SlurmJob("7_1", tmp_path / "log", tmp_path, Queue())
    assert job.poll() == status
    log = tmp_path / "log"
    assert (reason in log.read_text()) if reason else not log.exists()


# with a real Slurm

MODULE = """
import os, signal, sys, time
print("here", os.getcwd())
{"ends": lambda: sys.exit(3), "dies": lambda: os.kill(os.getpid(), 9), "stays": lambda: time.sleep(120)}[sys.argv[1]]()
"""


@real_slurm
@pytest.mark.nightly
@pytest.mark.usefixtures("cancelled_at_last")
def test_works_are_elements_of_one_array(here: Path) -> None:
    Path("mine.py").write_text(MODULE)
    works = [ProcessSpec(("mine", word), here / f"{word}.log", {"minutes": 2}) for word in ("ends", "dies", "stays")]
    launcher = SlurmLauncher(here / "jobs")
    jobs = launcher.start(works)
    assert len({job.id.partition("_")[0] for job in jobs}) == 1
    wait_for(lambda: jobs[0].poll() is not None and jobs[1].poll() is not None, 90)
    assert [job.poll() for job in jobs] == [3, -9, None]
    wait_for(lambda: jobs[2].log.exists())
    (again,) = SlurmLauncher(here / "jobs").start(works[2:])  # after the first command has been killed
    assert (again.id, again.adopted) == (jobs[2].id, True)
    again.cancel()
    wait_for(lambda: jobs[2].poll() is not None)
    assert jobs[2].poll() == 143
    assert str(here) in (here / "stays.log").read_text()
    assert "ended as CANCELLED" in (here / "stays.log").read_text()


def interrupt(job: str, *words: str) -> None:
    """Puts a job back into the queue, and lets it start again soon: Slurm itself waits for two minutes."""

    def state() -> str:
        said = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T %r"], capture_output=True, text=True)
        return said.stdout.strip()

    subprocess.run([*words, job], check=True)
    wait_for(lambda: state() == "PENDING BeginTime")
    time.sleep(3)  # a job that starts in the second in which it was put back is refused by its node
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)


def interrupt_twice(out: Path) -> None:
    """Out of time, and put back by hand: each in the middle of the only run in a folder."""

    def steps() -> int:
        return sum(path.read_text().count("\n") for path in out.glob("*/history.jsonl"))

    for words in (("scancel", "--signal=USR2"), ("scontrol", "requeue")):
        before = steps()
        wait_for(lambda: steps() > before + 2, 90)  # noqa: B023
        (submitted,) = (out / ".slurm").glob("*_submitted.pkl")
        interrupt(submitted.name.partition("_")[0], *words)


@real_slurm
@pytest.mark.nightly
@pytest.mark.usefixtures("cancelled_at_last")
def test_a_run_put_back_into_the_queue_ends_as_an_undisturbed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, words = tmp_path / "slurm", [*WORDS, "--epochs", "30", "--workers", "0", "--checkpoint-seconds", "1"]
    interrupting = threading.Thread(target=interrupt_twice, args=(out,))
    interrupting.start()
    assert main([*words, "--out", str(out), "--launcher", "slurm", "--gpus", "0", "--minutes", "5"]) == 0
    interrupting.join()
    said = capsys.readouterr()
    assert said.err.count("resuming after step") == 2
    assert said.out.count("Here: task reid, dataset toy_market") == 1
    assert main([*words, "--out", str(tmp_path / "plain")]) == 0
    assert_equal_runs(out, tmp_path / "plain")


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


def test_slurms_notice_does_not_kill_a_child_which_saves_its_state_before_it_stops(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", CHILD], log, tmp_path, dict(os.environ))
    wait_for(lambda: "ready" in log.read_text())
    os.kill(process._process.pid, signal.SIGUSR2)
    process.wait(0.5)
    assert process.status is None
    process.stop()
    process.stop()  # one signal, not two
    assert process.wait() == 143
    assert not process.finished
    assert "saved" in log.read_text()
