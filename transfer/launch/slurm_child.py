"""What runs inside a Slurm job: one child process, which saves its state before the job goes back into the queue.

Slurm's notice that a job's time is over is the signal that the job asked for (SIGUSR2); of preemption, that or SIGTERM.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

FINISHED = (0, 3)  # scores, or a training that broke down: a result
STOPPED = 143


class Process:
    """A child that can be asked to stop, and waited for, from within a signal handler too."""

    def __init__(self, words: list[str], log: Path, folder: Path, environment: dict[str, str], tables: bool = True):
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file if tables else subprocess.DEVNULL,
                stderr=file,
                cwd=folder,
                env=environment,
                start_new_session=True,
                preexec_fn=_ignore_notice,
            )
        self.status: int | None = None
        self.asked = False
        # `Popen.wait` holds a lock, on which a handler that interrupts it would wait for ever.
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        self.status = self._process.wait()

    @property
    def result(self) -> int:
        """The exit status of a child that has ended, negative for a signal."""
        assert self.status is not None
        return self.status

    @property
    def over(self) -> bool:
        """Whether it has ended by itself: nothing is left to go on with.

        SIGTERM may have come from Slurm, which tells all of a job's processes on some clusters.
        """
        if self.status is None or self.status in (STOPPED, -signal.SIGTERM):
            return False
        return not self.asked or self.status in FINISHED

    def stop(self) -> None:
        """SIGTERM, once: a second one would end the child before its state is saved.

        Not to the group: torchrun, and the run itself, stop their own children.
        """
        if not self.asked and self.status is None:
            self._process.terminate()
            self.asked = True

    def wait(self, seconds: float = float("inf")) -> None:
        """Until the child has ended, or this long."""
        end = time.monotonic() + seconds
        while self.status is None and time.monotonic() < end:
            time.sleep(0.1)


class _Over(Exception):
    """Raised in a signal handler that finds the child ended, to have its status returned."""


@dataclass
class Child:
    """`python -m WORDS` in a job, on each of its nodes; called by submitit, which pickles it."""

    words: tuple[str, ...]
    log: Path
    """Gets what the child writes."""
    folder: Path
    """Working directory."""
    root: Path
    """The clone of the suite that is used."""
    nodes: int = 1
    processes: int = 1
    """Ranks on each node."""
    cpus: int | None = None
    """Cores on each node; None: those that Slurm gives."""
    tables: bool = True
    """Whether the log gets stdout too, not stderr alone."""
    grace: float = 60.0
    """Seconds from Slurm's notice within which the state must be saved."""

    def __call__(self) -> int:
        """Runs the child to its end; returns its exit status, negative for a signal.

        When it is stopped it does not return: the job goes back into the queue, or ends without a result.
        """
        node = _node()
        signal.signal(signal.SIGTERM, self._on_notice)
        if node:  # on the first node submitit has a handler, which calls `checkpoint`
            signal.signal(_notice(), self._on_notice)
        process = self._process = self._start(node)
        try:
            process.wait()
            if process.over:
                return process.result
            if node:
                _wait_for_the_first_node(self.grace)
            elif job_state() == "RUNNING":
                # Preemption with a time of grace: Slurm kills the job later, and what has ended by then it forgets.
                os.kill(os.getpid(), _notice())
                time.sleep(1)
            sys.exit(STOPPED)  # Slurm ends the job, or puts it back into the queue itself: no result
        except _Over:
            return process.result

    def checkpoint(self) -> "DelayedSubmission":
        """Called by submitit within its signal handler: what the job does when it starts again.

        A child that does not stop in time goes on from an older state.
        """
        from submitit.core.utils import DelayedSubmission

        process = getattr(self, "_process", None)
        if process is not None:
            process.stop()
            process.wait(self.grace)
            if process.over:
                raise _Over
        return DelayedSubmission(replace(self))

    def command(self, node: int, hosts: list[str], job: int) -> list[str]:
        """The command line on a node, by torchrun where there are several ranks.

        Args:
            hosts: of the job; the first one is where ranks meet.
            job: its number, from which the port follows.
        """
        words = [*self.words, *self._threads()]
        if self.nodes == self.processes == 1:
            return [sys.executable, "-m", *words]
        where = ["--standalone"]
        if self.nodes > 1:
            # static: the first node is the same for all, whatever names its host goes by
            where = ["--nnodes", str(self.nodes), "--node-rank", str(node)]
            where += ["--master-addr", hosts[0], "--master-port", str(20000 + job % 20000)]
        torchrun = ["torch.distributed.run", *where, "--nproc-per-node", str(self.processes), "-m"]
        return [sys.executable, "-m", *torchrun, *words]

    def _threads(self) -> list[str]:
        """Where Slurm does not bind a job to its cores, the run would take all of the node."""
        if self.cpus is None or "--threads" in self.words or len(os.sched_getaffinity(0)) <= self.cpus:
            return []
        return ["--threads", str(max(1, self.cpus // self.processes))]

    def _start(self, node: int) -> Process:
        from submitit.slurm.slurm import SlurmJobEnvironment

        job = int(os.environ.get("SLURM_JOB_ID", 0))
        paths = [str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        if self.processes > 1:
            environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, with a banner
        words = self.command(node, list(SlurmJobEnvironment().hostnames), job)
        return Process(words, self.log, self.folder, environment, self.tables)

    def _on_notice(self, number: int, frame: FrameType | None) -> None:
        process = getattr(self, "_process", None)
        if process is None:
            sys.exit(STOPPED)
        process.stop()


def job_state() -> str:
    """What Slurm says of the job that this process runs in: RUNNING, COMPLETING ...; empty when it does not answer."""
    words = ["squeue", "--noheader", "--jobs", os.environ.get("SLURM_JOB_ID", ""), "--format", "%T"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _wait_for_the_first_node(seconds: float) -> None:
    """A task that ended now could end the job before its first node has put it back into the queue."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and job_state() == "RUNNING":
        time.sleep(5)


def _node() -> int:
    return int(os.environ.get("SLURM_PROCID", 0))


def _notice() -> signal.Signals:
    from submitit.core.job_environment import JobEnvironment

    return signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]


def _ignore_notice() -> None:
    """Some clusters signal every process of a job; the notice would kill the child, which gets SIGTERM instead."""
    signal.signal(_notice(), signal.SIG_IGN)
