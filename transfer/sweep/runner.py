"""Runs the jobs of a sweep: finished ones are reused, failed ones tried again, and their successors blocked."""

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from transfer.core.errors import UserError, print_safe
from transfer.core.files import check_writable, lock
from transfer.core.grouped import values_by_key
from transfer.engine.cost import duration
from transfer.engine.outcome import SCORED
from transfer.experiments.grid import SweepJob, result_file
from transfer.launch import Job, Launcher, ProcessSpec
from transfer.records.baselines import copied_from
from transfer.records.record import Record
from transfer.records.store import read_result
from transfer.sweep.earlier_results import EarlierResults, read_record

POLL_SECONDS = 0.2
SHOW_SECONDS = 60.0  # between two views of the running jobs, of which so many are shown one by one
MOST_SHOWN = 20
LOCK = Path("jobs") / "lock"
RETRIES = 1  # how often a failed job is started again
OK, WRONG_ARGUMENTS, TRAINING_FAILED, STOPPED = 0, 2, 3, 143
"""Exit statuses of a job's command."""
LOG_TAIL = 2**20
"""Bytes at the end of a log that are read."""


@dataclass
class Progress:
    """A job and its progress."""

    job: SweepJob
    status: str = "waiting"
    """waiting, running, failed, blocked, missing (packages, data or weights), or the status of its training run."""
    reason: str = ""
    attempts: int = 0
    record: Record | None = None
    reused: bool = False
    process: Job | None = None
    started: float = 0.0
    """The time of the last start, in seconds of the monotonic clock."""
    seconds: float = 0.0
    """The duration of all attempts."""
    key: str = ""
    """What it reads; see `EarlierResults.key`."""
    log_size: int = 0
    """Bytes of its log at the last start, before which are earlier attempts."""

    @property
    def ended(self) -> bool:
        """Whether the job has ended: completed, failed, blocked, missing, or with a failed training."""
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
    """

    out: Path
    launcher: Launcher
    extra: tuple[str, ...] = ()
    on_end: Callable[[Progress], Sequence[SweepJob]] = lambda progress: ()
    jobs: dict[str, Progress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shown = time.monotonic()
        self._earlier = EarlierResults(self.out, self.extra)

    def add(self, jobs: Sequence[SweepJob]) -> None:
        """Add jobs whose names are new."""
        for job in jobs:
            self.jobs.setdefault(job.name, Progress(job))

    def leave_out(self, missing: Mapping[str, Sequence[str]]) -> None:
        """End jobs, by their names, that lack something, as `missing`; reasons are told by their first lines."""
        for name, texts in missing.items():
            self._end(self.jobs[name], "missing", "; ".join(text.partition("\n")[0] for text in texts))

    def run(self) -> None:
        """Run until every job has ended.

        Raises:
            UserError: the folder cannot be written, another process runs this sweep, or a job can
                never start.
        """
        check_writable(self.out / "jobs", "--out")
        for progress in self.jobs.values():
            self.launcher.fits(self._process_spec(progress))  # raises for a job that can never start
        with (self.out / LOCK).open("a") as file:
            if not lock(file, self.out / LOCK):
                raise UserError(
                    f"{self.out}: another process runs this sweep; wait for it, or use another --out FOLDER"
                )
            try:
                while not all(progress.ended for progress in self.jobs.values()):
                    self._update()
                    self._start_ready()
                    self._show_running()
                    time.sleep(POLL_SECONDS)
            finally:
                self.launcher.close()

    def _update(self) -> None:
        """Take the results of processes that have ended, and block the jobs whose parent gave no weights."""
        for progress in list(self.jobs.values()):
            parent = self._parent(progress)
            if progress.process is not None and progress.status == "running":
                status = progress.process.poll()
                if status is not None:
                    progress.seconds += time.monotonic() - progress.started
                    self._finish(progress, status)
            elif progress.status == "waiting" and parent and parent.ended and parent.status not in SCORED:
                ending = f"training failed ({parent.status})" if parent.training_failed else parent.status
                self._end(progress, "blocked", f"{parent.job.title}: {ending}")

    def _start_ready(self) -> None:
        """Reuse or start the jobs that wait for nothing, as far as the launcher has room."""
        arrays: dict[str, list[Progress]] = {}
        full = set[str]()  # resources for which an earlier job waits, also if a process ends meanwhile
        for progress in list(self.jobs.values()):
            parent, resources = self._parent(progress), repr(progress.job.step.resources)
            if progress.status != "waiting" or (parent and parent.status not in SCORED) or resources in full:
                continue
            if not self.launcher.fits(self._process_spec(progress)):
                full.add(resources)
            elif not self._reuse(progress, parent) and self._files_unchanged(progress):
                if self.launcher.slots is None:
                    # jobs with equal resources form one array, which Slurm accepts or rejects as a whole
                    arrays.setdefault(resources, []).append(progress)
                else:
                    self._launch([progress])
        for array in arrays.values():
            self._launch(array)

    def _reuse(self, progress: Progress, parent: Progress | None) -> bool:
        """Return whether an earlier start of the sweep has left a job's record, which is taken."""
        progress.key = self._earlier.key(progress.job, parent.record if parent else None)
        record = self._earlier.find(progress.job, progress.key)
        if record is not None:
            progress.reused = True
            self._record(progress, record)
        return progress.reused

    def _files_unchanged(self, progress: Progress) -> bool:
        """Return whether the user's files of a job are unchanged since the sweep began; otherwise the job has failed.

        This is checked before and after a job, which reads its files some time after it was started.
        """
        if changed := progress.job.changed_files():
            reason = f"{', '.join(changed)} changed since the sweep began; rerun the command"
            self._end(progress, "failed", reason)
        return not changed

    def _launch(self, ready: Sequence[Progress]) -> None:
        for progress in ready:
            result_file(self.out, progress.job.name).unlink(missing_ok=True)
            progress.log_size = self._log(progress).stat().st_size if self._log(progress).exists() else 0
        try:
            processes = self.launcher.start([self._process_spec(progress) for progress in ready])
        except UserError as error:  # rejected: the other jobs continue
            for progress in ready:
                self._end(progress, "failed", str(error))
            return
        for progress, process in zip(ready, processes, strict=True):
            progress.process, progress.status, progress.started = process, "running", time.monotonic()
            progress.attempts += 1
            self._print(progress, "started" if progress.attempts == 1 else "retried")

    def _process_spec(self, progress: Progress) -> ProcessSpec:
        job = progress.job
        return ProcessSpec((*job.argv(self.out), *self.extra), self._log(progress), job.step.resources)

    def _log(self, progress: Progress) -> Path:
        return self.out / "jobs" / f"{progress.job.name}.log"

    def _finish(self, progress: Progress, status: int) -> None:
        """Take the record that an ended process left; without one the job has failed, and is tried once more."""
        result = read_result(result_file(self.out, progress.job.name))
        record = read_record(self.out, result.runs[0]) if result else None
        if result and record is not None and status >= 0 and result.status in (OK, TRAINING_FAILED):
            if self._files_unchanged(progress):
                self._earlier.keep(progress.job, record, progress.key)
                progress.reused = bool(copied_from(self.out / "runs" / record.run_id))
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
        self._end(progress, record.status, record.reason)

    def _end(self, progress: Progress, status: str, reason: str = "") -> None:
        progress.status, progress.reason = status, reason
        self.add(self.on_end(progress))
        self._print(progress, _ending(progress) + self._time_left())

    def _print(self, progress: Progress, text: str) -> None:
        """Print a line about a job to stderr, with the number of jobs that have ended."""
        ended = sum(item.ended for item in self.jobs.values())
        _say(f"[{ended}/{len(self.jobs)}] {progress.job.title}: {text}")

    def _show_running(self) -> None:
        """Print once a minute the last line that each running job has logged."""
        if time.monotonic() < self._shown + SHOW_SECONDS:
            return
        self._shown = time.monotonic()
        running = [progress for progress in self.jobs.values() if progress.status == "running"]
        for progress in running[:MOST_SHOWN]:
            line = last_line(self._log(progress), progress.log_size)
            _say(f"  {progress.job.title}: {line or f'running for {duration(self._shown - progress.started)}'}")
        if len(running) > MOST_SHOWN:
            _say(f"  and {len(running) - MOST_SHOWN} more")

    def _time_left(self) -> str:
        """Return the time left by the mean duration of the jobs of each step that ended; empty if there is none yet."""
        ended = [item for item in self.jobs.values() if item.record is not None]
        seconds = values_by_key((item.job.step.name, item.seconds) for item in ended if not item.reused)
        left = [item.job.step.name for item in self.jobs.values() if not item.ended]
        known = [fmean(seconds[step]) for step in left if step in seconds]
        if not known or self.launcher.slots is None:
            return ""
        bound = "about" if len(known) == len(left) else "at least"
        return f"; {bound} {duration(sum(known) / min(len(left), self.launcher.slots))} left"

    def _parent(self, progress: Progress) -> Progress | None:
        return self.jobs[progress.job.parent.name] if progress.job.parent else None


def _say(text: str) -> None:
    print_safe(text, file=sys.stderr, flush=True)


def _ending(progress: Progress) -> str:
    """Return how a job ended, as text for people."""
    record, reason = progress.record, f": {progress.reason}" if progress.reason else ""
    if record is None:
        return progress.status + reason
    seconds = "reused" if progress.reused else duration(progress.seconds)
    if record.training_failed:
        return f"training failed, {progress.status} at step {record.outcome['step']} ({seconds}){reason}"
    score = f", {record.primary} {record.shown(record.primary):.2f}" if record.primary in record.scores else ""
    return f"{progress.status}{score} ({seconds}){reason}"


def last_line(log: Path, start: int = 0) -> str:
    """Return the last line of a log, such as a progress bar with epoch, loss and time left; empty if there is none."""
    return (_lines(log, start) or [""])[-1]


def failure_reason(status: int, log: Path, start: int = 0) -> str:
    """Return why a process failed: the signal that ended it, or the last error in its log.

    Args:
        status: exit status of the process; negative for a signal.
        log: what it and the attempts before it have printed.
        start: byte of the log at which this attempt begins.
    """
    if status < 0:
        hint = "; the system's memory limit does that" if status == -9 else ""
        return f"killed by signal {-status}{hint}; see {log}"
    if status == STOPPED:
        return "stopped by a signal, its state saved; rerun the command to resume"
    texts = _lines(log, start)
    together = re.sub(r":\n", ": ", "\n".join(texts))  # a line that ends with a colon is not all
    errors = re.findall(r"(?m)^error: ?(.*)", together)
    text = (errors or texts or ["its log is empty"])[-1][:300]
    # the options that it names are the job's, and the sweep may have others of these names
    hint = "; --set STEP.OPTION=VALUE sets an option of jobs" if " --" in text.replace("--debug", "") else ""
    return f"exit status {status}: {text}{hint}; see {log}"


def _lines(log: Path, start: int) -> list[str]:
    """Return the non-empty lines of a log after a byte offset, without drawn bars and moves of the cursor."""
    try:
        content = log.read_bytes()[start:][-LOG_TAIL:].decode("utf-8", errors="replace")
    except OSError:
        return []
    content = re.sub(r"\x1b\[\w|\|[ \u2580-\u259f]*\|", " ", content)
    return [text for line in re.split(r"[\r\n]", content) if (text := " ".join(line.split()))]
