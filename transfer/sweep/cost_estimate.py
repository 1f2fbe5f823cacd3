"""Predicts the cost of a sweep before it starts: the operations of each job, and hours at a stated speed."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.data.spec import resolve_dataset
from backbones.errors import UserError
from transfer.doctor.speed_memory import recall_speed
from transfer.launch.base import ProcessSpec, python_command
from transfer.report.render.text import markdown
from transfer.report.tables.table import Column, Table
from transfer.sweep.definition.grid import SweepJob, result_file
from transfer.sweep.definition.sweep_file import SweepFile
from transfer.sweep.model_check import Built, operations_at, recipe_of, side_of, views_of

if TYPE_CHECKING:
    from transfer.sweep.lr_search import Searches

COLUMNS = (Column("PFLOP", significant_digits=3), Column("device hours", significant_digits=3))


def plan(
    sweep: SweepFile,
    jobs: list[SweepJob],
    out: Path,
    extra: tuple[str, ...],
    gpus: int | None,
    speed: float | None,
    searches: "Searches | None",
    built: Built,
) -> str:
    """Return the jobs of a sweep with their commands and predicted cost, as text.

    Args:
        sweep: the sweep.
        jobs: its jobs; with searches, the first ones.
        out: the folder of the sweep.
        extra: arguments that every command gets besides its own.
        gpus: the number of GPUs of a job; None means the number in its step.
        speed: TFLOP/s that a device sustains; None takes what was measured.
        searches: the searches of the sweep, if it has any.
        built: the result of building the models.
    """
    speed, source = (speed, "--speed") if speed else _measured()
    predictions = [_predicted(job) for job in jobs]
    columns = COLUMNS if speed else COLUMNS[:1]
    rows = [_row(job, operations, speed, out) for job, (operations, _) in zip(jobs, predictions)]
    total = sum(operations or 0.0 for operations, _ in predictions)
    hours = f"{total / (speed * 3.6e15):.3g} device hours at {speed:.3g} TFLOP/s ({source})" if speed else source
    lines = [
        f"sweep {sweep.name}, tier {sweep.tier}: {len(jobs)} cells, {total / 1e15:.3g} PFLOP; {hours}",
        f"{len(jobs) - len(built.failed)} of {len(jobs)} cells can be built: {built.models} models, on the meta device",
        "Counted are the backbone's operations, 3 in training for each of a forward pass; not heads, data, start-up.",
        *dict.fromkeys(f"without a prediction: {reason}" for _, reason in predictions if reason),
    ]
    if searches:
        budget = searches.groups[0].search.budget
        lines.append(f"Each of {len(searches.groups)} searches runs up to {budget} such cells.")
    table = markdown(Table.from_rows(rows, columns))
    return "\n".join([*lines, "", table, "", *(_command(job, out, extra, gpus) for job in jobs)])


def _row(job: SweepJob, operations: float | None, speed: float | None, out: Path) -> dict[str, Any]:
    hours = {"device hours": operations and operations / (speed * 3.6e15)} if speed else {}
    return {
        "cell": job.name,
        "after": job.parent.name if job.parent else None,
        "PFLOP": operations and operations / 1e15,
        **hours,
        "ended": "yes" if result_file(out, job.name).with_suffix(".done.json").exists() else None,
    }


def _command(job: SweepJob, out: Path, extra: tuple[str, ...], gpus: int | None) -> str:
    """Return the command line that a person would type for a job."""
    count = job.step.resources.get("gpus", 1) if gpus is None else gpus
    process = ProcessSpec((*job.argv(out), *extra), out)
    return shlex.join(["python", *python_command(process, int(count))[1:]])


def _predicted(job: SweepJob) -> tuple[float | None, str]:
    """Return the operations of a job, or None and the reason why they are not known."""
    try:
        operations = job_operations(job)
    except UserError as error:
        return None, str(error).splitlines()[0]
    except Exception as error:  # raised by a user's code
        return None, f"a part of {job.backbone} raised {type(error).__name__}: {error}"
    return operations, "" if operations is not None else f"{job.dataset} does not say how many images it holds"


def job_operations(job: SweepJob) -> float | None:
    """Return the operations of a job's training and feature extraction; None if the number of images is not known."""
    recipe = recipe_of(job)
    counts = resolve_dataset(job.dataset).counts or {}
    train, test = _images(counts, ("train",)), _images(counts, ("val", "test", "query", "gallery"))
    if train is None:
        return None
    epochs = float(recipe.get("epochs") or 0)
    train *= float(recipe.get("label_fraction") or 1)
    per_image = 0.0
    for size, times in views_of(recipe):
        per_image += times * operations_at(job, size)
    evaluated = operations_at(job, side_of(recipe))
    if not epochs:
        return evaluated * (train + (test or 0))
    passes = 2 if recipe.get("sam", "none") != "none" else 1  # SAM takes a second gradient in each step
    return epochs * train * per_image * passes + evaluated * (test or 0)


def _images(counts: dict[str, Any], splits: tuple[str, ...]) -> float | None:
    """Return the number of images in these splits; None if the dataset's facts count none of them."""
    counted = [counts[split]["images"] for split in splits if "images" in counts.get(split, {})]
    return float(sum(counted)) if counted else None


def _measured() -> tuple[float | None, str]:
    """Return the TFLOP/s that `doctor speed` has measured on this machine, and what it was measured with."""
    import torch

    from backbones.runtime.device import device_name

    name = device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if measured := recall_speed(name):
        return measured.tflops, f"`transfer.doctor speed` with {measured.backbone} on this {name}, {measured.date}"
    return None, "`python -m transfer.doctor speed`, or --speed TFLOPS, makes hours of that"
