"""The function that runs inside a Slurm job: it starts one child process, which saves its state before a requeue.

Slurm announces the end of a job's time by the signal that the job asked for (SIGUSR2), and preemption by that signal
or SIGTERM. Below are also the parameters by which Slurm gives a job the resources that a sweep's YAML names.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from transfer.cli.options import LaunchOptions
from transfer.core.files import ROOT
from transfer.launch import ProcessSpec, python_command

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission


FINISHED = (0, 3)  # exit statuses of a run with a record: scores, or a failed training run
STOPPED = 143


class Process:
    """A child process that can be stopped and waited for, also from within a signal handler.

    It is polled: `Popen.wait` holds a lock, on which a handler that interrupts it would wait for ever.
    """

    def __init__(self, command: list[str], log: Path, folder: Path, environment: dict[str, str], tables: bool = True):
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file if tables else subprocess.DEVNULL,
                stderr=file,
                cwd=folder,
                env=environment,
                start_new_session=True,
                preexec_fn=_ignore_notice,
            )
        self.asked_to_stop = False

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while the child runs."""
        return self._process.poll()

    @property
    def finished(self) -> bool:
        """Whether the child has ended by itself, so that there is nothing to resume.

        An end by SIGTERM does not count: on some clusters Slurm signals all processes of a job.
        """
        if self.status is None or self.status in (STOPPED, -signal.SIGTERM):
            return False
        return not self.asked_to_stop or self.status in FINISHED

    def stop(self) -> None:
        """Send SIGTERM once; a second one would end the child before its state is saved.

        The process group is not signalled: torchrun and the run itself stop their own children.
        """
        if not self.asked_to_stop and self.status is None:
            self._process.terminate()
            self.asked_to_stop = True

    def wait(self, seconds: float = float("inf")) -> int | None:
        """Wait until the child has ended, at most this long, and return its status."""
        end = time.monotonic() + seconds
        while self.status is None and time.monotonic() < end:
            time.sleep(0.1)
        return self.status


class _ChildFinished(Exception):
    """Raised in a signal handler when the child has ended, so that its status is returned."""


@dataclass
class Child:
    """Runs `python -m ARGUMENTS` on each node of a job. submitit pickles and calls it."""

    process: ProcessSpec
    folder: Path
    """The working directory."""
    tables: bool = True
    """Whether stdout is logged too, not stderr alone."""
    grace: float = 60.0
    """The number of seconds after Slurm's notice within which the state must be saved."""

    def __call__(self) -> int:
        """Run the child to its end and return its exit status, negative for a signal.

        When the child is stopped this does not return: the job is requeued or ends without a result.
        """
        node = int(os.environ.get("SLURM_PROCID", 0))
        signal.signal(signal.SIGTERM, self._on_notice)
        if node:  # on the first node submitit has a handler, which calls `checkpoint`
            signal.signal(_notice(), self._on_notice)
        child = self._child = self._start(node)
        try:
            status = child.wait()
            if child.finished:
                return int(status or 0)
            if node:
                _wait_for_the_first_node(self.grace)
            elif job_state() == "RUNNING":
                # Preempted with a grace period: Slurm kills the job later, but would not requeue it if it ended first.
                os.kill(os.getpid(), _notice())
                time.sleep(1)
            sys.exit(STOPPED)  # without a result: Slurm ends the job or requeues it itself
        except _ChildFinished:
            return int(child.status or 0)

    def checkpoint(self) -> "DelayedSubmission":
        """Return what the job runs when it starts again; submitit calls this within its signal handler.

        A child that does not stop in time resumes from an older state.
        """
        from submitit.core.utils import DelayedSubmission

        child = getattr(self, "_child", None)
        if child is not None:
            child.stop()
            child.wait(self.grace)
            if child.finished:
                raise _ChildFinished
        return DelayedSubmission(replace(self))

    def command(self, node: int, hosts: list[str], job_id: int) -> list[str]:
        """Return the command line for a node; it uses torchrun when there are several ranks.

        Args:
            node: the index of the node.
            hosts: the names of the job's nodes; ranks meet on the first one.
            job_id: the number of the job, from which the port is derived.
        """
        resources, arguments = self.process.resources, list(self.process.arguments)
        nodes, processes, cpus = resources.get("nodes") or 1, ranks(resources), resources.get("cpus")
        # where Slurm does not bind the job to its cores
        if cpus and "--threads" not in arguments and len(os.sched_getaffinity(0)) > cpus:
            arguments += ["--threads", str(max(1, cpus // processes))]
        # static rendezvous: all nodes agree on the first one, whatever names its host has
        rendezvous = ["--nnodes", str(nodes), "--node-rank", str(node)]
        rendezvous += ["--master-addr", hosts[0], "--master-port", str(20000 + job_id % 20000)]
        return python_command(arguments, processes, rendezvous if nodes > 1 else ())

    def _start(self, node: int) -> Process:
        from submitit.slurm.slurm import SlurmJobEnvironment

        job_id = int(os.environ.get("SLURM_JOB_ID", 0))
        environment = dict(os.environ)
        if ranks(self.process.resources) > 1:
            environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, with a banner
        command = self.command(node, list(SlurmJobEnvironment().hostnames), job_id)
        return Process(command, self.process.log, self.folder, environment, self.tables)

    def _on_notice(self, number: int, frame: FrameType | None) -> None:
        child = getattr(self, "_child", None)
        if child is None:
            sys.exit(STOPPED)
        child.stop()


def job_state() -> str:
    """Return Slurm's state of the job that this process runs in, such as RUNNING; empty if Slurm does not answer."""
    command = ["squeue", "--noheader", "--jobs", os.environ.get("SLURM_JOB_ID", ""), "--format", "%T"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _wait_for_the_first_node(seconds: float) -> None:
    """Wait, because a task that ended now could end the job before its first node has requeued it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and job_state() == "RUNNING":
        time.sleep(5)


def _notice() -> signal.Signals:
    from submitit.core.job_environment import JobEnvironment

    return signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]


def _ignore_notice() -> None:
    """Ignore the notice, which some clusters send to all processes of a job: it would kill the child."""
    signal.signal(_notice(), signal.SIG_IGN)


NAMES = ("partition", "account", "qos", "constraint")


def ranks(resources: dict[str, Any]) -> int:
    """Return the number of processes on each node: one per GPU, or one without GPUs."""
    return int(resources.get("gpus") or 1)


def sbatch_parameters(resources: dict[str, Any], parallel: int) -> dict[str, Any]:
    """Return the parameters of submitit's executor for the resources of a process.

    Args:
        resources: see `transfer.cli.options.check_resources`.
        parallel: the number of elements of an array that may run at once.
    """
    minutes = resources.get("minutes") or LaunchOptions.minutes
    cpus, memory = resources.get("cpus"), resources.get("memory_gb")
    parameters: dict[str, Any] = {name: str(resources[name]) for name in NAMES if resources.get(name)}
    parameters |= {"gpus_per_node": resources["gpus"]} if resources.get("gpus") else {}
    parameters |= {"mem": f"{max(1, round(memory * 1024))}MB"} if memory else {}
    # since Slurm 22.05 a task gets the cores of its job only when srun is told so
    parameters |= {"cpus_per_task": cpus, "srun_args": [f"--cpus-per-task={cpus}"]} if cpus else {}
    return parameters | {
        "time": minutes,
        "nodes": resources.get("nodes") or 1,
        "ntasks_per_node": 1,
        "signal_delay_s": min(120, minutes * 20),
        "array_parallelism": parallel,
        "wckey": None,
        # set here because a cluster may not let jobs inherit the environment
        "setup": [f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"],
        "additional_parameters": {"requeue": True, **(resources.get("extra") or {})},
    }
