"""Submits one command as a Slurm job, follows its log, and prints its table at the end. Imports no torch."""

import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from transfer.cli.options import RESOURCES
from transfer.core.errors import UserError, print_safe
from transfer.core.process import INTERRUPTED
from transfer.launch import ProcessSpec
from transfer.records.record import Record
from transfer.records.store import RECORD, Store, read_result

if TYPE_CHECKING:
    from transfer.cli.command import Command
    from transfer.launch.slurm import SlurmJob

JOBS = ".slurm"  # the folder of job files, within the folder of the runs
LOOK_SECONDS = 0.5
TAIL = 4096  # bytes of the log that are shown when the job was submitted by an earlier command


def launch(program: str, arguments: list[str], command: "Command") -> int:
    """Run `python -m PROGRAM ARGUMENTS` as a Slurm job, or follow the job that an earlier command submitted.

    Returns:
        The exit status of the command itself, not that of torchrun; 130 after Ctrl-C, after which the job continues.

    Raises:
        UserError: Slurm is missing or rejects the job.
    """
    from transfer.launch.slurm import SlurmLauncher

    folder = command.run.out / JOBS
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
    kept, skip = list[str](), False
    for argument in arguments:
        name, sign, _ = argument.partition("=")
        launches = name.startswith("--") and name[2:].replace("-", "_") in ("launcher", *RESOURCES)
        kept += [] if skip or launches else [argument]
        skip = launches and not sign
    return kept


def _follow(job: "SlurmJob") -> int:
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
        time.sleep(LOOK_SECONDS)


def _end(result_file: Path, out: Path, job: "SlurmJob", status: int) -> int:
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
