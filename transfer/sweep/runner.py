"""Runs the jobs of a sweep: finished ones are reused, failed ones tried again, and their successors blocked."""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backbones.checkpoints import exports
from backbones.errors import UserError
from backbones.runtime.files import check_writable, write_atomic
from transfer.launch.base import Job, Launcher, ProcessSpec
from transfer.records import command_result
from transfer.records.store import STATE, Record, Store
from transfer.sweep.data_state import data_state, option_states, weights_of, weights_states
from transfer.sweep.definition.cell_states import CellState, locked, write_states
from transfer.sweep.definition.grid import SweepJob, result_file
from transfer.sweep.failures import STOPPED, WRONG_ARGUMENTS, failure_reason
from transfer.sweep.progress_lines import ProgressLines, RunningCell

POLL_SECONDS = 0.2
RETRIES = 1  # how often a failed job is started again


@dataclass
class Progress:
    """A job and its progress."""

    job: SweepJob
    status: str = "waiting"
    """waiting, running, failed, blocked, or the outcome of its training."""
    reason: str = ""
    attempts: int = 0
    record: Record | None = None
    reused: bool = False
    searched: bool = False
    """Whether a record of an earlier start of the sweep was searched for."""
    process: Job | None = None
    started: float = 0.0
    """The time of the last start, in seconds of the monotonic clock."""
    seconds: float = 0.0
    """The duration of all attempts."""
    has_state: bool = False
    """Whether its run had a saved state at the last start."""
    key: str = ""
    """What it read when it was last started; see `Sweeper._key`."""
    log_size: int = 0
    """Bytes of its log at the last start, before which are earlier attempts."""

    @property
    def ended(self) -> bool:
        """Whether the job has ended: completed, failed, blocked, or with a failed training."""
        return self.status not in ("waiting", "running")

    @property
    def training_failed(self) -> bool:
        """Whether the job's training failed, which is a result with a record."""
        return self.record is not None and self.record.training_failed


@dataclass
class Sweeper:
    """Runs the jobs of one sweep on one launcher.

    Args:
        out: the folder of the sweep with `runs`, `weights`, `features`, and `jobs` for the logs.
        launcher: starts the processes.
        extra: arguments that every job's command gets besides its own.
        on_end: is called with every job that has ended, and returns further jobs to run.
        gpus: the number of GPUs of a job; None means the number in its step.
        recheck: whether commands of finished jobs are started too, even where no file of their data has changed.
    """

    out: Path
    launcher: Launcher
    extra: tuple[str, ...] = ()
    on_end: Callable[[Progress], Sequence[SweepJob]] = lambda progress: ()
    gpus: int | None = None
    recheck: bool = False
    jobs: dict[str, Progress] = field(default_factory=dict)
    _data: dict[tuple[str, str | None], str] = field(default_factory=dict)
    """The states of the data sets when their first cell was looked at."""
    _weights: dict[Path, list[str]] = field(default_factory=dict)
    """The states of the weights that no cell trains, when the first of their cells was added."""
    _changed: bool = True
    """Whether the states of the cells have changed since they were written."""

    def __post_init__(self) -> None:
        self._lines = ProgressLines(self.out / "runs")

    def add(self, jobs: Sequence[SweepJob]) -> None:
        """Add jobs whose names are new."""
        for job in jobs:
            self.jobs.setdefault(job.name, Progress(job))
            if job.parent is None:
                self._weights.setdefault(weights_of(job), weights_states(job))

    def run(self) -> None:
        """Run until every job has ended.

        Raises:
            UserError: the folder cannot be written, another process runs this sweep, or a job can never start.
        """
        check_writable(self.out / "cells", "--out")
        for progress in self.jobs.values():
            self.launcher.fits(self._process_spec(progress))  # raises for a job that can never start
        with locked(self.out):
            try:
                while not all(progress.ended for progress in self.jobs.values()):
                    self._update()
                    self._start_ready()
                    self._show()
                    time.sleep(POLL_SECONDS)
            finally:
                self._show()
                self.launcher.close()

    def _show(self) -> None:
        """Write the states of the cells if they have changed, and what the running ones do."""
        if self._changed:
            write_states(self.out, [_state(progress) for progress in self.jobs.values()])
            self._changed = False
        running = [progress for progress in self.jobs.values() if progress.status == "running"]
        now = time.monotonic()
        self._lines.show(
            [
                RunningCell(progress.job.name, result_file(self.out, progress.job.name), now - progress.started)
                for progress in running
            ]
        )

    def _update(self) -> None:
        """Take the results of processes that have ended; block or reuse waiting jobs."""
        for progress in list(self.jobs.values()):
            if progress.status == "waiting":
                self._block_or_reuse(progress)
            elif progress.status == "running" and progress.process is not None:
                status = progress.process.poll()
                if status is not None:
                    progress.seconds += time.monotonic() - progress.started
                    self._finish(progress, status)

    def _block_or_reuse(self, progress: Progress) -> None:
        parent = self._parent(progress)
        if parent is not None and parent.ended and parent.status != "completed":
            ending = f"broke down ({parent.status})" if parent.training_failed else parent.status
            self._end(progress, "blocked", f"{parent.job.name} {ending}")
        elif parent is None or parent.ended:
            record = None if self.recheck or progress.searched else self._earlier_record(progress.job)
            progress.searched = True
            if record is not None:
                progress.reused = True
                self._record(progress, record)

    def _start_ready(self) -> None:
        """Start the jobs that wait for nothing, as far as the launcher has room."""
        ready = [progress for progress in self.jobs.values() if self._ready(progress)]
        if self.launcher.slots is None:
            by_resources: dict[str, list[Progress]] = {}
            # jobs with equal resources form one array, which Slurm accepts or refuses as one
            for progress in filter(self._files_unchanged, ready):
                by_resources.setdefault(repr(self._process_spec(progress).resources), []).append(progress)
            for group in by_resources.values():
                self._launch(group)
            return
        for progress in ready:
            if self.launcher.fits(self._process_spec(progress)) and self._files_unchanged(progress):
                self._launch([progress])

    def _ready(self, progress: Progress) -> bool:
        parent = self._parent(progress)
        return progress.status == "waiting" and (parent is None or parent.status == "completed")

    def _files_unchanged(self, progress: Progress) -> bool:
        """Return whether the user's files and weights of a job are those of the sweep's begin; else it has failed.

        Seeds of one row would otherwise start from different weights. It is asked before a job and after it, which
        reads its files some time after it was started.
        """
        job = progress.job
        changed = job.changed_files()
        if job.parent is None and self._weights[weights_of(job)] != weights_states(job):
            changed.append(str(weights_of(job)))
        if changed:
            reason = f"{', '.join(changed)} changed since the sweep began; start the sweep again"
            self._end(progress, "failed", reason)
        return not changed

    def _launch(self, ready: Sequence[Progress]) -> None:
        for progress in ready:
            progress.key = self._key(progress.job)  # what the record will stand for
            begun = command_result.begun(result_file(self.out, progress.job.name))
            progress.has_state = bool(begun) and (self.out / "runs" / begun / STATE).exists()
            command_result.forget(result_file(self.out, progress.job.name))
            progress.log_size = self._log(progress).stat().st_size if self._log(progress).exists() else 0
        try:
            processes = self.launcher.start([self._process_spec(progress) for progress in ready])
        except UserError as error:  # refused: the other jobs go on
            for progress in ready:
                self._end(progress, "failed", str(error))
            return
        for progress, process in zip(ready, processes, strict=True):
            progress.process, progress.status, progress.started = process, "running", time.monotonic()
            progress.attempts += 1
            goes_on = " from its saved state" if progress.has_state else ""
            self._print(
                progress, ("goes on" if goes_on else "starts" if progress.attempts == 1 else "is tried again") + goes_on
            )

    def _process_spec(self, progress: Progress) -> ProcessSpec:
        job = progress.job
        argv = (*job.argv(self.out), *self.extra)
        resources = job.step.resources if self.gpus is None else {**job.step.resources, "gpus": self.gpus}
        return ProcessSpec(argv, self._log(progress), resources)

    def _log(self, progress: Progress) -> Path:
        return self.out / "cells" / f"{progress.job.name}.log"

    def _finish(self, progress: Progress, status: int) -> None:
        """Take the record that an ended process left; without one the job has failed, and is tried once more."""
        result = command_result.read(result_file(self.out, progress.job.name))
        record = self._read(result.runs) if result else None
        if record is not None and status >= 0:
            if self._files_unchanged(progress):
                self._remember(progress, record)
                self._record(progress, record)
            return
        reason = failure_reason(status, self._log(progress), progress.log_size)
        if status in (WRONG_ARGUMENTS, STOPPED) or progress.attempts > RETRIES:
            self._end(progress, "failed", reason)
        else:
            self._print(progress, f"failed: {reason}")
            progress.status, progress.reason = "waiting", reason

    def _record(self, progress: Progress, record: Record) -> None:
        progress.record = record
        self._end(progress, record.outcome["status"], record.outcome["reason"])

    def _end(self, progress: Progress, status: str, reason: str = "") -> None:
        progress.status, progress.reason = status, reason
        self._print(progress, _ending(progress))
        self.add(self.on_end(progress))

    def _print(self, progress: Progress, text: str) -> None:
        """Print a line about a job to stderr, with the number of jobs that have ended."""
        self._changed = True
        ended = sum(item.ended for item in self.jobs.values())
        self._lines.say(f"[{ended}/{len(self.jobs)}] {progress.job.name} {text}")

    def _parent(self, progress: Progress) -> Progress | None:
        return self.jobs[progress.job.parent.name] if progress.job.parent else None

    def _earlier_record(self, job: SweepJob) -> Record | None:
        """Return the record of a job that ended in an earlier start of the sweep, without starting its command."""
        try:
            content = json.loads(self._done_file(job).read_text(encoding="utf-8"))
            runs, key = content["runs"], content["key"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        record = self._read(runs) if key == self._key(job) else None
        return record if record is not None and self._has_weights(job, record) else None

    def _has_weights(self, job: SweepJob, record: Record) -> bool:
        """Return whether the weights that a pretraining left for later jobs are still in their place."""
        folder = self.out / "weights" / job.name
        run_key = exports.pretraining_facts(folder).get("identity") if (folder / exports.WEIGHTS).is_file() else None
        return record.export is None or job.step.kind != "pretrain" or run_key == record.run_key

    def _remember(self, progress: Progress, record: Record) -> None:
        content = {"runs": [record.run_id], "key": progress.key}
        write_atomic(self._done_file(progress.job), json.dumps(content).encode())

    def _done_file(self, job: SweepJob) -> Path:
        return self.out / "cells" / f"{job.name}.done.json"

    def _key(self, job: SweepJob) -> str:
        """Return a digest of a job's command, the state of its data, and its initial weights; its name covers users'
        files.
        """
        parent = self.jobs[job.parent.name].record if job.parent else None
        weights = parent.export if parent else weights_states(job)
        parts = [job.argv(Path()), self.extra, self._data_state(job), weights, option_states(job)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _data_state(self, job: SweepJob) -> list[str]:
        """Return the states of the data set of a job, and of those on which it is scored besides."""
        named = job.options.get("data", _value_of("--data", self.extra))
        folder = None if named is None else str(named)
        others = job.options.get("test_dataset") or ()
        names = (job.dataset, *map(str, others if isinstance(others, list | tuple) else (others,)))
        for key in ((name, folder) for name in names):
            if key not in self._data:
                self._data[key] = data_state(key[0], None if folder is None else Path(folder))
        return [self._data[name, folder] for name in names]

    def _read(self, runs: Sequence[str]) -> Record | None:
        store = Store(self.out / "runs")
        for name in runs:
            with contextlib.suppress(UserError):
                return Record.read(store.folder(name) / "record.json")
        return None


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    """Return the word after a flag, None without it."""
    return argv[argv.index(flag) + 1] if flag in argv else None


def _state(progress: Progress) -> CellState:
    record = progress.record
    run = record.run_id if record else ""
    return CellState(progress.job.name, progress.status, (progress.reason.splitlines() or [""])[0], run)


def _ending(progress: Progress) -> str:
    """Return how a job ended, as text for its user."""
    record, reason = progress.record, f": {progress.reason}" if progress.reason else ""
    if record is None:
        return progress.status + reason
    seconds = "reused" if progress.reused else f"{progress.seconds:.0f} s"
    if record.training_failed:
        return f"broke down, {progress.status} at step {record.outcome['step']} ({seconds}){reason}"
    score = f", {record.primary} {record.shown(record.primary):.2f}" if record.primary in record.scores else ""
    return f"completed{score} ({seconds})"
