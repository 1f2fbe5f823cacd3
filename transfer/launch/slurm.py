"""Runs processes as job arrays of a Slurm cluster through submitit; they are requeued when preempted or out of time.

States of jobs are read from `squeue`, so that no accounting is needed. A single command runs as one job, whose log it
follows. Imports no torch.
"""

import contextlib
import hashlib
import importlib.util
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from transfer.cli.command import Command
from transfer.cli.options import RESOURCES
from transfer.core.errors import UserError, print_safe
from transfer.core.files import check_writable
from transfer.core.machine_errors import install_command
from transfer.core.process import INTERRUPTED
from transfer.launch import ProcessSpec
from transfer.launch.slurm_child import STOPPED, Child, sbatch_parameters
from transfer.records.record import Record
from transfer.records.store import RECORD, Store, read_result

QUEUE_SECONDS = 3.0  # between two calls of squeue, which loads a server that all users share
TIMEOUT_SECONDS = 60
ENDED = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|TIMEOUT")
NEVER = re.compile("BadConstraints|PartitionConfig|Partition(Node|Time)Limit|InvalidAccount|InvalidQOS")
"""Reasons, as `squeue` prints them, for which a job would never start."""


def refusal(text: str) -> UserError:
    """Return the error for a job that `sbatch` rejects, with its message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    lines = [re.sub(r"^(sbatch|squeue): (error: |fatal: )?", "", line) for line in lines]
    fix = "; --gpus says how many GPUs a job asks for, 0 where nodes have none" if "gres" in text else ""
    return UserError(f"Slurm rejected the job: {'; '.join(dict.fromkeys(lines))}{fix}")


@dataclass
class Queue:
    """The states of all of a user's jobs, from one call of `squeue`."""

    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The state of each job id (`12`, or `12_3` in an array) and, for a waiting job, why it waits."""
    silent: str = ""
    """The error message of `squeue` when it does not answer."""
    looked: float = -QUEUE_SECONDS
    """When `squeue` was last called, in monotonic seconds."""

    def look(self, now: bool = False) -> None:
        """Call `squeue` again, unless that was done a moment ago."""
        if not now and time.monotonic() < self.looked + QUEUE_SECONDS:
            return
        user = str(os.getuid())
        command = ["squeue", "--noheader", "--array", "--states", "all", "--user", user, "--format", "%i|%T|%r"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
            self.silent = "" if done.returncode == 0 else done.stderr.strip() or "squeue does not answer"
        except (OSError, subprocess.TimeoutExpired) as error:
            self.silent = str(error)
        self.looked = time.monotonic()
        if not self.silent:
            lines = (line.split("|", 2) for line in done.stdout.splitlines())
            self.states = {parts[0]: (parts[1], parts[2]) for parts in lines if len(parts) == 3}

    def live(self) -> set[str]:
        """Return the ids of jobs that wait or run now. Raises UserError when Slurm does not answer."""
        self.look(now=True)
        if self.silent:
            raise UserError(f"Slurm does not answer: {self.silent}")
        return {job for job, (state, _) in self.states.items() if not ENDED.fullmatch(state)}


TIMEOUTS = 50  # the number of times that a job may run out of time; preemptions are not counted
ARRAY_SIZE = 1000  # elements of an array; Slurm's default limit is one more
RESULT_SECONDS = 30.0  # for a network disk to show a result that another machine wrote


@dataclass
class SlurmJob:
    """A Slurm job, or an element of a job array."""

    id: str
    log: Path
    results: Path
    """The folder in which submitit leaves its result."""
    queue: Queue
    adopted: bool = False
    """Whether an earlier command submitted it."""
    _status: int | None = None
    _ended: float | None = None
    _looked: float = 0.0

    def poll(self) -> int | None:
        """See `transfer.launch.Job`; 143 for a cancelled job, 1 when Slurm ended it for another reason."""
        self.queue.look()
        if self._status is None and self._looked != self.queue.looked:
            self._looked = self.queue.looked
            self._status = self._result() if self.result_file.exists() else self._lost()
        return self._status

    def state(self) -> str:
        """Return its state in one word, and for a waiting job Slurm's reason why it waits."""
        if self._status is not None:
            return "ended"
        if self.queue.silent:
            return f"unknown: {self.queue.silent}"
        state, why = self.queue.states.get(self.id, ("PENDING", ""))
        if state == "PENDING":
            return f"waiting ({why})" if why not in ("", "None") else "waiting"
        return "running" if state == "RUNNING" else state.lower()

    def cancel(self) -> None:
        """Take it out of the queue, or stop it."""
        subprocess.run(["scancel", self.id], capture_output=True, timeout=TIMEOUT_SECONDS)

    @property
    def result_file(self) -> Path:
        """The file that submitit writes when the job has ended."""
        return self.results / f"{self.id}_0_result.pkl"

    def _result(self) -> int:
        kind, value = pickle.loads(self.result_file.read_bytes())
        if kind == "success":
            return int(value)
        self._say(str(value).strip().splitlines()[-1])
        return 1

    def _lost(self) -> int | None:
        """Return the status of a job that ended without a result or will never start; None while it is alive."""
        state, why = self.queue.states.get(self.id, ("COMPLETED", ""))
        never = state == "PENDING" and NEVER.fullmatch(why)
        if self.queue.silent or not (never or ENDED.fullmatch(state)):
            self._ended = None
            return None
        self._ended = self._ended or time.monotonic()
        if state != "CANCELLED" and time.monotonic() < self._ended + RESULT_SECONDS:
            return None
        if never:
            self.cancel()
            self._say(f"would never start ({why}); `sinfo -o '%P %l %D %c %m %G %f'` lists what the cluster has")
        else:
            self._say(f"ended as {state}; Slurm's own log is {self.results / self.id}_0_log.err")
        return {"CANCELLED": STOPPED, "OUT_OF_MEMORY": -9}.get(state, 1)

    def _say(self, reason: str) -> None:
        """Append the reason to the log, where users and sweeps look for it."""
        with contextlib.suppress(OSError), self.log.open("a", encoding="utf-8") as file:
            file.write(f"error: Slurm job {self.id}: {reason}\n")


@dataclass
class SlurmLauncher:
    """Submits processes with equal resources as arrays, and finds the jobs that an earlier command submitted.

    Args:
        folder: where the files of the jobs go; every machine of the cluster must see it.
        array_parallelism: the number of elements of an array that may run at once. None leaves it to Slurm.
        tables: whether stdout is logged too, not stderr alone.

    Raises:
        UserError: submitit or Slurm is missing.
    """

    folder: Path
    array_parallelism: int | None = None
    tables: bool = True
    queue: Queue = field(default_factory=Queue)
    jobs: list[SlurmJob] = field(default_factory=list)
    slots: int | None = None
    _earlier: dict[tuple[str, ...], str] | None = None

    def __post_init__(self) -> None:
        if shutil.which("sbatch") is None:
            fix = "run the command on a machine of a Slurm cluster, or use --launcher local"
            raise UserError(f"--launcher slurm: sbatch not found; {fix}")
        if importlib.util.find_spec("submitit") is None:
            raise UserError(f"--launcher slurm: submitit is not installed; {install_command('sweep')}")
        self.folder = self.folder.absolute()

    def start(self, processes: Sequence[ProcessSpec]) -> list[SlurmJob]:
        """See `transfer.launch.Launcher`. The processes take equal resources; jobs that still run are adopted.

        Raises:
            UserError: Slurm rejects a job, with its reason. No job of this call is left in the queue then.
        """
        if self._earlier is None:
            self._earlier = self._find_earlier()
        jobs = {
            process.arguments: SlurmJob(job_id, process.log, self.folder, self.queue, adopted=True)
            for process in processes
            if (job_id := self._earlier.pop(process.arguments, None))
        }
        new = [process for process in processes if process.arguments not in jobs]
        submitted: list[SlurmJob] = []
        try:
            for start in range(0, len(new), ARRAY_SIZE):
                submitted += self._submit(new[start : start + ARRAY_SIZE])
        except UserError:
            for job in submitted:
                job.cancel()
            raise
        jobs |= zip((process.arguments for process in new), submitted, strict=True)
        self.queue.look(now=True)
        started = [jobs[process.arguments] for process in processes]
        self.jobs += started
        return started

    def fits(self, process: ProcessSpec) -> bool:
        """See `transfer.launch.Launcher`; a process that does not fit now waits in the queue."""
        return True

    def close(self) -> None:
        """Leave the jobs to Slurm and print how to follow or stop them."""
        array_ids = sorted({job.id.partition("_")[0] for job in self.jobs if job.poll() is None})
        if array_ids:
            print_safe(
                f"Slurm jobs {' '.join(array_ids)} continue; rerun the command to follow them, or use "
                f"`scancel {' '.join(array_ids)}` to stop them with their checkpoints saved",
                file=sys.stderr,
            )

    def _find_earlier(self) -> dict[tuple[str, ...], str]:
        """Return the ids of this folder's waiting and running jobs by their command's arguments."""
        ending = "_submitted.pkl"
        job_ids = {path.name.removesuffix(ending) for path in self.folder.glob(f"*{ending}")}
        live_ids = sorted(job_ids & self.queue.live())
        jobs = {job_id: pickle.loads((self.folder / f"{job_id}{ending}").read_bytes()) for job_id in live_ids}
        return {job.function.process.arguments: job_id for job_id, job in jobs.items()}

    def _submit(self, processes: Sequence[ProcessSpec]) -> list[SlurmJob]:
        """Submit processes that take the same resources as one array. Raises UserError when Slurm rejects it."""
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        resources = processes[0].resources
        parameters = sbatch_parameters(resources, self.array_parallelism or len(processes))
        grace = parameters["signal_delay_s"] * 0.75
        functions = [
            Child(replace(process, log=process.log.absolute()), Path.cwd(), tables=self.tables, grace=grace)
            for process in processes
        ]
        check_writable(self.folder, "--out")
        executor = SlurmExecutor(folder=self.folder, max_num_timeout=TIMEOUTS)
        executor.update_parameters(job_name=".".join(processes[0].arguments[:2]), **parameters)
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises as well
                submitted = executor.submit_array(functions)
        except (FailedJobError, FailedSubmissionError) as error:
            raise refusal(str(error)) from None
        jobs = [
            SlurmJob(job.job_id, process.log, self.folder, self.queue)
            for job, process in zip(submitted, processes, strict=True)
        ]
        for job in jobs:
            job.result_file.unlink(missing_ok=True)  # left by an older job, if Slurm's numbering was reset
        return jobs


FOLLOW_SECONDS = 0.5  # between two looks at the log of a single job
TAIL = 4096  # bytes of the log that are shown when the job was submitted by an earlier command


def run_as_job(program: str, arguments: list[str], command: Command) -> int:
    """Run `python -m PROGRAM ARGUMENTS` as a Slurm job, or follow the job that an earlier command submitted.

    Returns:
        The exit status of the command itself, not that of torchrun; 130 after Ctrl-C, after which the job continues.

    Raises:
        UserError: Slurm is missing or rejects the job.
    """
    folder = command.run.out / ".slurm"
    launcher = SlurmLauncher(folder, tables=False)
    command_line = (program, *without_launch(arguments), "--launcher", "local")
    digest = hashlib.sha256("\0".join(command_line).encode()).hexdigest()[:12]
    result_file = (command.run.result_file or folder / f"{digest}.json").absolute()
    process = ProcessSpec(
        (*command_line, "--result-file", str(result_file)), folder / f"{digest}.log", command.launch.resources()
    )
    result_file.unlink(missing_ok=True)
    (job,) = launcher.start([process])
    try:
        status = _follow(job)
    except KeyboardInterrupt:
        print_safe(f"\nSlurm job {job.id} continues; rerun the command to follow it, or stop it by `scancel {job.id}`, "
              "its checkpoint saved", file=sys.stderr)  # fmt: skip
        return INTERRUPTED
    return _end(result_file, command.run.out, job, status)


def without_launch(arguments: list[str]) -> list[str]:
    """Return the arguments without those that say where the command runs."""
    others, is_value = list[str](), False
    for argument in arguments:
        name, sign, _ = argument.partition("=")
        launches = name.startswith("--") and name[2:].replace("-", "_") in ("launcher", *RESOURCES)
        if not (is_value or launches):
            others.append(argument)
        is_value = launches and not sign
    return others


def _follow(job: SlurmJob) -> int:
    """Print the job's state and log to stderr until it ends; return its exit status."""
    size = job.log.stat().st_size if job.log.exists() else 0
    position, state = max(0, size - TAIL) if job.adopted else size, ""
    while True:
        status = job.poll()
        if job.state() not in (state, "ended"):
            state = job.state()
            print_safe(f"Slurm job {job.id}: {state}", file=sys.stderr)
        if job.log.exists():
            with job.log.open("rb") as file:
                file.seek(position)
                text = file.read()
            sys.stderr.write(text.decode(errors="replace"))
            sys.stderr.flush()
            position += len(text)
        if status is not None:
            return status
        time.sleep(FOLLOW_SECONDS)


def _end(result_file: Path, out: Path, job: SlurmJob, status: int) -> int:
    """Print the table of the runs that the job made or reused; return the exit status of its command."""
    result = read_result(result_file)
    if result is None:
        if status < 0:
            raise UserError(f"Slurm job {job.id}: killed by signal {-status}; its log is {job.log}")
        return status
    from transfer.report.tables.text import run_table

    records = [Record.read(Store(out).folder(run) / RECORD) for run in result.runs]
    if records:
        print_safe(run_table(records, out))
    return result.status
