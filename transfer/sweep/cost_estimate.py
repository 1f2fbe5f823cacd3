"""Says before a sweep starts what it will run, on which data, and how long that takes at a measured speed."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError, UserError, errors_together, first_line, kept, shortened
from transfer.data.spec import resolve_dataset
from transfer.engine.cost import duration, recall_speed
from transfer.experiments.grid import SweepJob, result_file
from transfer.experiments.sweep_file import SweepFile
from transfer.launch import ProcessSpec, python_command
from transfer.sweep.model_check import build_task_model, check_options, operations_at, recipe_of, side_of, views_of

START = 4.0  # starting and ending a job takes that many times the processor time of importing torch
STEP_SECONDS = 0.02  # processor time of a step of `tiny` on one core of an AMD EPYC, which is more than its operations


def plan(sweep: SweepFile, jobs: Sequence[SweepJob], out: Path, runs_per_search: int) -> str:
    """Return what a sweep will run, on which data, and where its results go, in a line per step.

    Args:
        sweep: the sweep.
        jobs: its jobs; with searches, the first ones.
        out: the folder of the sweep.
        runs_per_search: the largest number of jobs of each search; 0 for a sweep without searches.
    """
    pretraining, ended = sum(job.step.kind == "pretrain" for job in jobs), sum(has_ended(job, out) for job in jobs)
    kinds = f"{len(jobs)} jobs ({pretraining} pretraining, {len(jobs) - pretraining} on tasks)"
    lines = [f"sweep {sweep.name}, tier {sweep.tier}: {kinds}, {ended} finished earlier; output: {out}"]
    for step in sweep.steps.values():
        if of_step := [job for job in jobs if job.step.name == step.name]:
            seeds, data = ({str(getattr(job, name)): None for job in of_step} for name in ("seed", "dataset"))
            of_seeds = f"seed{'s' * (len(seeds) > 1)} {' '.join(seeds)}"
            lines.append(f"  {step.name}: {len(of_step)} x {step.recipe} on {shortened(data, 8)}, {of_seeds}")
    if runs_per_search:
        lines.append(f"  each search adds up to {runs_per_search - 1} more jobs")
    return "\n".join(lines)


def has_ended(job: SweepJob, out: Path) -> bool:
    """Return whether an earlier start of the sweep in a folder left a result of a job."""
    return result_file(out, job.name).with_suffix(".done.json").exists()


def command(job: SweepJob, out: Path, extra: tuple[str, ...], gpus: int | None) -> str:
    """Return the command line that a person would type for a job; `gpus` None means the number in its step."""
    count = job.step.resources.get("gpus", 1) if gpus is None else gpus
    process = ProcessSpec((*job.argv(out), *extra), out)
    return shlex.join(["python", *python_command(process, int(count))[1:]])


class Prediction:
    """The operations of jobs, and why some jobs cannot run.

    Args:
        jobs: the jobs.
        builds: whether to build the models of tasks too, such as detectors, which takes longer.

    Attributes:
        work: the operations of a job's training and feature extraction, and its steps, by its name if they are known.
        uncounted: datasets that do not say how many images they have.
        failed: the titles of the jobs whose model cannot run here, by reason.

    Raises:
        UsageError: lists the wrong options of all jobs.
    """

    def __init__(self, jobs: Sequence[SweepJob], *, builds: bool = False):
        self.work: dict[str, tuple[float, float]] = {}
        self.uncounted: dict[str, None] = {}
        self.failed: dict[str, list[str]] = {}
        parsed, built = set[tuple[str, ...]](), set[str]()
        with errors_together():
            for job in jobs:
                with kept():
                    check_options(job, parsed)
        for job in jobs:
            try:
                work = job_work(job)
                if builds:
                    build_task_model(job, built)
            except UserError as error:
                self.failed.setdefault(str(error), []).append(job.title)
            except Exception as error:  # raised by a user's code
                self.failed.setdefault(f"backbone {job.backbone}: {first_line(error)}", []).append(job.title)
            else:
                self.work |= {job.name: work} if work else {}
                self.uncounted |= {} if work else {job.dataset: None}

    def check(self, sweep: str) -> None:
        """Raise UsageError that lists the reasons why jobs cannot run."""
        if self.failed:
            lines = [f"{reason} ({shortened(titles, 2)})" for reason, titles in self.failed.items()]
            count = sum(map(len, self.failed.values()))
            raise UsageError("\n".join([f"sweep {sweep}: {count} jobs cannot run:", *lines]))

    def text(self, speed: float | None, source: str, gpus: int, slots: int, start: float, times: dict[str, int]) -> str:
        """Return the expected time of all jobs.

        Args:
            speed: TFLOP/s that a device sustains; None if that is not known.
            source: where the speed is from, or how to get it.
            gpus: the number of devices that compute at once.
            slots: the number of jobs that run at once.
            start: the seconds in which this process has imported torch.
            times: how often a job counts, by its name, if not once.
        """
        if speed is None:
            return f"expected time: unknown; {source}"
        seconds = [
            times.get(name, 1) * (operations / speed / gpus / 1e12 + (START * start + STEP_SECONDS * steps) / slots)
            for name, (operations, steps) in self.work.items()
        ]
        more = f"; unknown for {shortened(self.uncounted)}, without `counts`" if self.uncounted else ""
        return (
            f"expected time: about {duration(sum(seconds))} at {speed:.3g} TFLOP/s ({source}){more}\n"
            "  This counts process starts, steps and backbones, not detectors and the decoding of large images."
        )


def job_work(job: SweepJob) -> tuple[float, float] | None:
    """Return the operations of a job's training and feature extraction, and its steps; None for an unknown dataset."""
    recipe = recipe_of(job)
    counts = resolve_dataset(job.dataset).counts or {}
    train, test = _images(counts, ("train",)), _images(counts, ("val", "test", "query", "gallery"))
    evaluated = operations_at(job, side_of(recipe))
    if train is None:
        return None
    epochs = float(recipe.get("epochs") or 0)
    train *= float(recipe.get("label_fraction") or 1)
    per_image = sum(times * operations_at(job, size) for size, times in views_of(recipe))
    if not epochs:
        return evaluated * (train + (test or 0)), 0
    passes = 2 if recipe.get("sam", "none") != "none" else 1  # SAM takes a second gradient in each step
    batch = recipe.get("batch_size") or recipe.get("num_identities", 8) * recipe.get("num_instances", 8)
    return epochs * train * per_image * passes + evaluated * (test or 0), epochs * passes * train / batch


def _images(counts: dict[str, Any], splits: tuple[str, ...]) -> float | None:
    """Return the number of images in these splits; None if the dataset's facts count none of them."""
    counted = [counts[split]["images"] for split in splits if "images" in counts.get(split, {})]
    return float(sum(counted)) if counted else None


def measured_speed() -> tuple[float | None, str]:
    """Return the TFLOP/s that `doctor speed` measured on this machine, and what it was measured with."""
    import torch

    from transfer.engine.device import device_name

    name = device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if measured := recall_speed(name):
        return measured.tflops, f"`transfer.doctor speed` with {measured.backbone} on this {name}, {measured.date}"
    return None, "run `python -m transfer.doctor speed --backbone deit_s16` once, or use --speed TFLOPS"
