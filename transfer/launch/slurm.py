"""Processes as jobs of a Slurm cluster, by submitit: arrays, requeued when preempted or out of time."""

import contextlib
import io
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from backbones.errors import UserError
from backbones.runtime.files import check_writable, write_error
from transfer.launch.base import ProcessSpec
from transfer.launch.slurm_child import STOPPED
from transfer.launch.slurm_queue import ENDED, NEVER, Queue, need_slurm, refusal
from transfer.launch.slurm_resources import child, sbatch_parameters

TIMEOUTS = 50  # times that a job may run out of time; preemptions are not counted
ARRAY = 1000  # elements; Slurm's own default allows one more
RESULT_SECONDS = 30.0  # until a result that was written on another machine is seen here


@dataclass
class SlurmJob:
    """A job of the cluster, or an element of an array."""

    id: str
    log: Path
    results: Path
    """Folder in which submitit leaves its result."""
    queue: Queue
    adopted: bool = False
    """Whether an earlier command has submitted it."""
    _status: int | None = None
    _ended: float | None = None
    _looked: float = 0.0

    def poll(self) -> int | None:
        """See `transfer.launch.base.Job`; 143 of a cancelled job, 1 of one that Slurm ended for another reason."""
        self.queue.look()
        if self._status is None and self._looked != self.queue.looked:
            self._looked = self.queue.looked
            self._status = self._result() if self.result_file.exists() else self._lost()
        return self._status

    def state(self) -> str:
        """What it does now, in a word; with what a waiting job waits for, in Slurm's words."""
        if self._status is not None:
            return "ended"
        if self.queue.silent:
            return f"unknown: {self.queue.silent}"
        state, why = self.queue.states.get(self.id, ("PENDING", ""))
        if state == "PENDING":
            return f"waiting ({why})" if why not in ("", "None") else "waiting"
        return "running" if state == "RUNNING" else state.lower()

    def cancel(self) -> None:
        """See `transfer.launch.base.Job`."""
        subprocess.run(["scancel", self.id], capture_output=True, timeout=60)

    @property
    def result_file(self) -> Path:
        """What submitit writes when the job has ended."""
        return self.results / f"{self.id}_0_result.pkl"

    def _result(self) -> int:
        kind, value = pickle.loads(self.result_file.read_bytes())
        if kind == "success":
            return int(value)
        self._say(str(value).strip().splitlines()[-1])
        return 1

    def _lost(self) -> int | None:
        """The status of a job that has ended without a result, or that will never start."""
        state, why = self.queue.states.get(self.id, ("COMPLETED", ""))
        never = state == "PENDING" and why in NEVER
        if self.queue.silent or (state not in ENDED and not never):
            self._ended = None
            return None
        self._ended = self._ended or time.monotonic()
        if state != "CANCELLED" and time.monotonic() < self._ended + RESULT_SECONDS:
            return None
        if never:
            self.cancel()
            self._say(f"it would never start ({why}); {NEVER[why]}")
        else:
            self._say(f"{ENDED[state]}; Slurm's own log is {self.results / self.id}_0_log.err")
        return {"CANCELLED": STOPPED, "OUT_OF_MEMORY": -9}.get(state, 1)

    def _say(self, reason: str) -> None:
        """Puts the reason into the log, where users and sweeps look for it."""
        with contextlib.suppress(OSError), self.log.open("a", encoding="utf-8") as file:
            file.write(f"error: Slurm job {self.id}: {reason}\n")


@dataclass
class SlurmLauncher:
    """Submits works with equal resources as one array; finds again what an earlier command has submitted.

    Args:
        folder: for the files of the jobs; every machine of the cluster must see it.
        array_parallelism: elements of an array that may run at once; None: as many as Slurm likes.
        tables: whether the works' logs get their stdout too, not stderr alone.

    Raises:
        UserError: no submitit, or no Slurm.
    """

    folder: Path
    array_parallelism: int | None = None
    tables: bool = True
    queue: Queue = field(default_factory=Queue)
    jobs: list[SlurmJob] = field(default_factory=list)
    slots: int | None = None
    _earlier: dict[tuple[str, ...], str] | None = None

    def __post_init__(self) -> None:
        need_slurm()
        _submitit()
        self.folder = self.folder.absolute()

    def start(self, works: Sequence[ProcessSpec]) -> list[SlurmJob]:
        """See `transfer.launch.base.Launcher`. What is under way from an earlier command is not submitted again.

        Raises:
            UserError: Slurm refuses a job, in its own words; none of the works stays behind then.
        """
        if self._earlier is None:
            self._earlier = self._find_earlier()
        jobs: dict[int, SlurmJob] = {}
        groups: dict[str, list[int]] = {}
        for number, work in enumerate(works):
            id = self._earlier.pop(work.words, None)
            if id is not None:
                jobs[number] = SlurmJob(id, work.log, self.folder, self.queue, adopted=True)
            else:
                groups.setdefault(json.dumps(work.resources, sort_keys=True, default=str), []).append(number)
        parts = [group[at : at + ARRAY] for group in groups.values() for at in range(0, len(group), ARRAY)]
        try:
            for part in parts:
                jobs |= zip(part, self._submit([works[number] for number in part]), strict=True)
        except UserError:
            for job in jobs.values():
                if not job.adopted:
                    job.cancel()
            raise
        self.queue.look(now=True)
        started = [jobs[number] for number in range(len(works))]
        self.jobs += started
        return started

    def fits(self, work: ProcessSpec) -> bool:
        """See `transfer.launch.base.Launcher`: what does not fit now waits in the queue."""
        return True

    def close(self) -> None:
        """Leaves the jobs to Slurm, and says so: the same command finds them again."""
        left = sorted({job.id.partition("_")[0] for job in self.jobs if job.poll() is None})
        if left:
            print(
                f"still with Slurm: {' '.join(left)}; the same command goes on with them, "
                f"`scancel {' '.join(left)}` ends them, their states saved",
                file=sys.stderr,
            )

    def _find_earlier(self) -> dict[tuple[str, ...], str]:
        """Jobs of this folder that wait or run, by their words."""
        ending = "_submitted.pkl"
        ids = {path.name.removesuffix(ending) for path in self.folder.glob(f"*{ending}")}
        live = sorted(ids & self.queue.live())
        return {_words_in(self.folder / f"{id}{ending}"): id for id in live}

    def _submit(self, works: Sequence[ProcessSpec]) -> list[SlurmJob]:
        """One array of works that take the same resources."""
        resources = works[0].resources
        parameters = sbatch_parameters(resources, self.array_parallelism or len(works))
        children = [child(work, parameters["signal_delay_s"], self.tables) for work in works]
        with self._whole_or_nothing():
            executor = _submitit().SlurmExecutor(folder=self.folder, max_num_timeout=TIMEOUTS)
            executor.update_parameters(job_name=".".join(works[0].words[:2]), **parameters)
            jobs = [SlurmJob(job.job_id, work.log, self.folder, self.queue)
                    for job, work in zip(executor.submit_array(children), works, strict=True)]  # fmt: skip
        for job in jobs:
            job.result_file.unlink(missing_ok=True)  # of a job that had this number before Slurm counted anew
        return jobs

    @contextlib.contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        """A refusal as an error for the user, without the files that submitit has made until then."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        new = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        check_writable(self.folder, "--out")
        before = set(self.folder.iterdir())
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises as well
                yield
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            for path in set(self.folder.iterdir()) - before:
                path.unlink(missing_ok=True)
            for folder in new:
                folder.rmdir()
            if isinstance(error, OSError):
                raise write_error(self.folder, error) from None
            raise refusal(str(error)) from None


def _words_in(path: Path) -> tuple[str, ...]:
    """The words of a job that was submitted; a job that goes back into the queue writes the file anew."""
    for wait in (1.0, 1.0, 0.0):
        with contextlib.suppress(FileNotFoundError, EOFError):
            return tuple(pickle.loads(path.read_bytes()).function.words)
        time.sleep(wait)
    raise UserError(f"{path}: a job under way, but what it runs cannot be read; `scancel` it or give another folder")


def _submitit() -> ModuleType:
    try:
        import submitit
    except ImportError:
        raise UserError("--launcher slurm: submitit is not installed; pip install -e '.[sweep]'") from None
    return submitit
