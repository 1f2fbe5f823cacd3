"""What `--dry-run` prints of a sweep: its cells with their commands, and which of them can be built."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transfer.launch.base import ProcessSpec, python_command
from transfer.sweep.definition.grid import SweepJob, result_file
from transfer.sweep.definition.sweep_file import SweepFile
from transfer.sweep.model_check import Built

if TYPE_CHECKING:
    from transfer.sweep.lr_search import Searches


def plan(
    sweep: SweepFile,
    jobs: Sequence[SweepJob],
    out: Path,
    extra: tuple[str, ...],
    gpus: int | None,
    searches: "Searches | None",
    built: Built,
) -> str:
    """Return the jobs of a sweep with their commands as text; those that have ended are marked.

    Args:
        sweep: the sweep.
        jobs: its jobs; with searches, the first ones.
        out: the folder of the sweep.
        extra: arguments that every command gets besides its own.
        gpus: the number of GPUs of a job; None means the number in its step.
        searches: the searches of the sweep, if it has any.
        built: the result of building the models.
    """
    lines = [
        f"sweep {sweep.name}, tier {sweep.tier}: {len(jobs)} cells, "
        f"of which {len(jobs) - len(built.failed)} can be built ({built.models} models, on the meta device)"
    ]
    if searches:
        budget = searches.groups[0].search.budget
        lines.append(f"Each of {len(searches.groups)} searches runs up to {budget} such cells.")
    for job in jobs:
        ended = " (ended)" if result_file(out, job.name).with_suffix(".done.json").exists() else ""
        lines += ["", f"{job.name}{ended}", f"  {_command(job, out, extra, gpus)}"]
    return "\n".join(lines)


def _command(job: SweepJob, out: Path, extra: tuple[str, ...], gpus: int | None) -> str:
    """Return the command line that a person would type for a job."""
    count = job.step.resources.get("gpus", 1) if gpus is None else gpus
    process = ProcessSpec((*job.argv(out), *extra), out)
    return shlex.join(["python", *python_command(process, int(count))[1:]])
