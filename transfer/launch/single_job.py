"""One command as a job of a cluster: submitted, followed, its table printed at the end. Imports no torch."""

import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from backbones.errors import UserError
from transfer.cli.options import RESOURCES
from transfer.launch.base import ProcessSpec
from transfer.records import command_result
from transfer.records.store import RECORD, Record, Store

if TYPE_CHECKING:
    from transfer.cli.command import Command
    from transfer.launch.slurm import SlurmJob

JOBS = ".slurm"  # in the folder of the runs
LOOK_SECONDS = 0.5
TAIL = 4096  # bytes of a log that are shown of a job which an earlier command has submitted
INTERRUPTED = 130
ENDINGS = (0, 1, 2, 3, 143)  # exit statuses of a command


def launch(program: str, words: list[str], command: "Command") -> int:
    """Runs `python -m PROGRAM WORDS` as a Slurm job, or follows the one that an earlier command has submitted.

    Returns:
        The exit status of the command in the job, whatever torchrun makes of it; 130 after Ctrl-C, and the job goes on.

    Raises:
        UserError: no Slurm, or one that refuses the job.
    """
    from transfer.launch.slurm import SlurmLauncher

    folder = command.run.out / JOBS
    launcher = SlurmLauncher(folder, tables=False)
    given = (program, *without_launch(words), "--launcher", "local")
    name = hashlib.sha256("\0".join(given).encode()).hexdigest()[:12]
    receipt = (command.run.receipt or folder / f"{name}.json").absolute()
    work = ProcessSpec((*given, "--receipt", str(receipt)), folder / f"{name}.log", command.launch.resources())
    receipt.unlink(missing_ok=True)
    (job,) = launcher.start([work])
    try:
        status = _follow(job)
    except KeyboardInterrupt:
        print(f"\nthe Slurm job {job.id} goes on; the same command follows it again, `scancel {job.id}` ends it, "
              "its state saved", file=sys.stderr)  # fmt: skip
        return INTERRUPTED
    return _end(receipt, command.run.out, job, status)


def without_launch(words: list[str]) -> list[str]:
    """The words without those that say where the command runs."""
    kept: list[str] = []
    skip = False
    for word in words:
        name, sign, _ = word.partition("=")
        if skip:
            skip = False
        elif name.startswith("--") and name[2:].replace("-", "_") in ("launcher", *RESOURCES):
            skip = not sign
        else:
            kept.append(word)
    return kept


def _follow(job: "SlurmJob") -> int:
    """Shows on stderr what the job waits for and what it writes, until it has ended; its exit status."""
    size = job.log.stat().st_size if job.log.exists() else 0
    shown, state = max(0, size - TAIL) if job.adopted else size, ""
    while True:
        status = job.poll()
        if job.state() not in (state, "ended"):
            state = job.state()
            print(f"Slurm job {job.id}: {state}", file=sys.stderr)
        shown = _show(job.log, shown)
        if status is not None:
            return status
        time.sleep(LOOK_SECONDS)


def _show(log: Path, shown: int) -> int:
    """Copies what was added to the log; the new position."""
    if not log.exists():
        return shown
    with log.open("rb") as file:
        file.seek(shown)
        added = file.read()
    sys.stderr.write(added.decode(errors="replace"))
    sys.stderr.flush()
    return shown + len(added)


def _end(receipt: Path, out: Path, job: "SlurmJob", status: int) -> int:
    """Prints the table of the runs that the command in the job has made or found; its exit status."""
    left = command_result.read(receipt)
    if left is None:
        if status < 0:
            raise UserError(f"Slurm job {job.id}: killed by signal {-status}; its log is {job.log}")
        if status == 0:
            raise UserError(f"Slurm job {job.id}: it ended well, but {receipt} is gone; give the same command again")
        return status if status in ENDINGS else 1
    from transfer.report.tables.scores import run_table

    records = [Record.read(Store(out).folder(run) / RECORD) for run in left.runs]
    if records:
        print(run_table(records))
    return left.status
