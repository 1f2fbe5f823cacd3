"""Says before a sweep starts what it will run, on which data, whether it can, and how long it takes.

The commands of jobs are parsed and their models built, each once and on the meta device.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import torch

from backbones.backbone import create
from backbones.flops import flops
from backbones.spec import BackboneSpec, resolve, sides
from transfer.cli.options import BACKBONE_OPTIONS
from transfer.core.errors import MissingInput, UserError, count, first_line, shortened
from transfer.core.grouped import grouped_by
from transfer.core.process import usable_cores
from transfer.data.spec import resolve_dataset
from transfer.engine.cost import CORE_SPEED, GPU_SPEED, duration, recall_speed
from transfer.engine.device import choose_precision, device_name
from transfer.engine.options import FitOptions
from transfer.experiments.grid import SweepJob
from transfer.experiments.sweep_file import SweepFile
from transfer.launch import python_command
from transfer.records.fields import parts_label
from transfer.report.tables.table import Table
from transfer.report.tables.text import markdown
from transfer.sweep.earlier_results import done_file
from transfer.sweep.inputs import JobData, parsed_command, recipe_values
from transfer.task import load_task

# processor time on a core of an AMD EPYC: of a forked job besides its steps, to which imports add 5 seconds on Slurm; a
# step of `tiny`, which is more than its operations
START_SECONDS, STEP_SECONDS = 3.3, 0.02
PASSES = 3  # a training step costs one forward pass and a backward pass of twice the operations
MOST_ROWS = 8
"""Most steps, or variants, that the expected time lists."""

Overrides = tuple[tuple[str, Any], ...]


def plan(sweep: SweepFile, jobs: Sequence[SweepJob], out: Path, runs_per_search: int) -> str:
    """Return what a sweep will run, on which data, and where its results go, in a line per step.

    Args:
        sweep: the sweep.
        jobs: its jobs; with searches, the first ones.
        out: the folder of the sweep.
        runs_per_search: the largest number of jobs of each search; 0 for a sweep without searches.
    """
    pretraining = sum(job.step.kind == "pretrain" for job in jobs)
    ended = sum(done_file(out, job).exists() for job in jobs)
    kinds = f"{len(jobs)} jobs ({pretraining} pretraining, {len(jobs) - pretraining} on tasks)"
    lines = [f"sweep {sweep.name}, tier {sweep.tier}: {kinds}, {ended} finished earlier; output: {out}"]
    for step in sweep.steps.values():
        if step_jobs := [job for job in jobs if job.step.name == step.name]:
            datasets = dict.fromkeys(job.dataset for job in step_jobs)
            seeds = dict.fromkeys(str(job.seed) for job in step_jobs)
            noun = "seed" if len(seeds) == 1 else "seeds"
            runs = f"{len(step_jobs)} x {step.recipe} on {shortened(datasets, 8)}"
            lines.append(f"  {step.name}: {runs}, {noun} {' '.join(seeds)}")
    if sweep.epochs:
        lines.append(f"  epochs of equal FLOPs in pretraining: {sweep.epochs_text}")
    if runs_per_search:
        lines.append(f"  each search adds up to {runs_per_search - 1} more jobs")
    return "\n".join(lines)


def command(job: SweepJob, out: Path, extra: tuple[str, ...]) -> str:
    """Return the command line that a person would type for a job."""
    ranks = int(job.step.resources.get("gpus", 1))
    return shlex.join(["python", *python_command((*job.argv(out), *extra), ranks)[1:]])


@dataclass(frozen=True)
class Devices:
    """The devices that a sweep runs on."""

    kind: str
    """GPU or core."""
    count: int
    """The number of devices."""
    speed: float
    """TFLOP/s that each sustains."""
    source: str
    """Where the speed is from."""


class WorkEstimate:
    """The operations of jobs, and why some jobs cannot run.

    Args:
        jobs: the jobs, whose options are known to be right; see `missing_inputs`.
        data: that of the jobs, which is opened where it has no counts; None counts none, as on a login node, where
            reading it is unwanted.
        builds: whether to build the models of tasks too, such as detectors, which takes longer.

    Attributes:
        work: the operations of a job's training and feature extraction, and its steps, by its name if they are known.
        uncounted: steps on datasets that do not say how many images they have, and are not here to be counted.
        failed: the titles of the jobs whose model cannot run here, by reason.
    """

    def __init__(self, jobs: Sequence[SweepJob], data: JobData | None = None, *, builds: bool = False):
        self.work: dict[str, tuple[float, float]] = {}
        self.jobs = jobs
        self.uncounted: dict[str, None] = {}
        self.failed: dict[str, list[str]] = {}
        built, counts = set[str](), dict[tuple[Any, ...], dict[str, Any]]()
        for job in jobs:
            try:
                key = (job.step.name, job.dataset, job.options.get("subset"))
                if key not in counts:
                    counts[key] = resolve_dataset(job.dataset).counts or _counted(job, data)
                work = _work(job, counts[key])
                if builds:
                    with suppress(MissingInput):  # see `missing_inputs`
                        _build_task_model(job, built)
            except UserError as error:
                self.failed.setdefault(str(error), []).append(job.title)
            except Exception as error:  # raised by a user's code
                self.failed.setdefault(f"backbone {job.backbone}: {first_line(error)}", []).append(job.title)
            else:
                if work:
                    self.work[job.name] = work
                else:
                    self.uncounted[f"{job.step.name} on {job.dataset}"] = None

    @property
    def failures(self) -> str:
        """A line for each reason why jobs cannot run; empty if all can."""
        return "\n".join(f"{reason} ({shortened(titles, 2)})" for reason, titles in self.failed.items())

    def text(self, devices: Devices, times: Mapping[str, int]) -> str:
        """Return the expected time of devices for all jobs, and for each step and variant.

        Args:
            devices: the devices that the jobs run on.
            times: how often a job counts, by its name, if not once.
        """
        lacks = f"\n  It lacks {shortened(self.uncounted)}: no `counts` of the data." if self.uncounted else ""
        if not self.work:
            return f"expected time: unknown{lacks}"
        jobs, kind = [job for job in self.jobs if job.name in self.work], devices.kind
        seconds = dict[str, float]()
        for name, (operations, steps) in self.work.items():
            computing = operations / devices.speed / 1e12
            seconds[name] = (computing + START_SECONDS + STEP_SECONDS * steps) * times.get(name, 1)
        total = sum(seconds.values())
        about = f"{'at least' if lacks else 'about'} {duration(total)} of {kind} time"
        wall = f"{duration(total / devices.count)} with {count(devices.count, kind)} always busy"
        lines = [f"expected time: {about}, {wall} at {devices.speed:.3g} TFLOP/s each ({devices.source})"]
        rows = []
        for parts in (grouped_by(jobs, lambda job: f"step {job.step.name}"), grouped_by(jobs, _variant)):
            if 1 < len(parts) <= MOST_ROWS:
                for part, its_jobs in parts.items():
                    rows.append({"part": part, f"{kind} time": duration(sum(seconds[job.name] for job in its_jobs))})
        if rows:
            lines.append(markdown(Table.from_rows(rows)))
        lines.append(
            "  This counts process starts, steps and backbones, not detectors and the decoding of large images."
        )
        return "\n".join(lines) + lacks


def _variant(job: SweepJob) -> str:
    return f"variant {parts_label({'name': Path(job.backbone).stem, **dict(_overrides(job))})}"


def measured_speed(*, gpu: bool = False) -> tuple[float, str]:
    """Return the TFLOP/s of a GPU or a core, as `doctor speed` measured it here or as assumed, and where it is from."""
    here = not gpu or torch.cuda.is_available()
    name = device_name(torch.device("cuda" if gpu else "cpu")) if here else ""
    if here and (measured := recall_speed(name)):
        source = f"measured by `transfer.doctor speed` with {measured.backbone} on this {name}, {measured.date}"
        return measured.tflops / (1 if gpu else usable_cores()), source
    how = f"`python -m transfer.doctor speed --backbone deit_s16` measures this {name}, " * here
    core_speed = CORE_SPEED[choose_precision("auto", torch.device("cpu"))]
    return GPU_SPEED if gpu else core_speed, f"assumed; {how}--speed TFLOPS sets it"


def _work(job: SweepJob, counts: dict[str, Any]) -> tuple[float, float] | None:
    """Return the operations of a job's training and feature extraction, and its steps; None without counts."""
    recipe = recipe_values(job)
    subset = job.options.get("subset") or inf
    train_images = _images(counts, ("train",), subset)
    test_images = _images(counts, ("val", "test", "query", "gallery"), subset) or 0
    forward_operations = _operations_at(job)
    if train_images is None:
        return None
    epochs = float(recipe.get("epochs") or 0)
    train_images *= float(recipe.get("label_fraction") or 1)
    if not epochs:
        reads_train = "epochs" not in recipe and getattr(load_task(job.step.recipe), "trains", False)
        return forward_operations * (test_images + train_images * reads_train), 0
    batch_size = recipe.get("batch_size") or recipe.get("num_identities", 8) * recipe.get("num_instances", 8)
    steps = epochs * _gradients(recipe) * train_images / batch_size
    return epochs * train_images * training_operations(job) + forward_operations * test_images, steps


def training_operations(job: SweepJob) -> float:
    """Return the operations with which a job trains on one image, those of the backbone's passes.

    Raises whatever the backbone raises when it cannot be built or takes no image of this size.
    """
    recipe = recipe_values(job)
    forward_operations = _operations_at(job)
    per_image = PASSES * forward_operations
    if "local_crops" in recipe:
        # the student trains on all crops; the teacher sees the two large ones without a backward pass
        local_operations = _operations_at(job, "local_size")
        per_image = (2 * PASSES + 2) * forward_operations + PASSES * recipe["local_crops"] * local_operations
    return per_image * _gradients(recipe)


def _gradients(recipe: dict[str, Any]) -> int:
    """Return the gradients that a step takes, which are two with SAM."""
    return 2 if recipe.get("sam", "none") != "none" else 1


def _images(counts: dict[str, Any], splits: tuple[str, ...], subset: float) -> float | None:
    """Return the number of images of a subset in these splits; None if the dataset's facts count none of them."""
    counted = [counts[split] for split in splits if "images" in counts.get(split, {})]
    return float(sum(_chosen(numbers, subset) for numbers in counted)) if counted else None


def _chosen(numbers: dict[str, int], subset: float) -> float:
    """Return the images of a split in `--subset`: its number of identities, images of each class, or else images."""
    images = numbers["images"]
    each = images / numbers["identities"] if "identities" in numbers else numbers.get("classes", 1)
    return min(images, subset * each)


def _counted(job: SweepJob, data: JobData | None) -> dict[str, Any]:
    """Return the counts of all of a job's data where it is, of whatever share of the labels the job takes; empty if it
    cannot be opened, or without `data`.
    """
    whole = {"label_fraction": 1.0} if "label_fraction" in recipe_values(job) else {}
    with suppress(UserError):
        return dict(data.of(replace(job, options=job.options | whole)).counts) if data else {}
    return {}


def _build_task_model(job: SweepJob, built: set[str]) -> None:
    """Build what the task of a job adds to the backbone, unless `built` has an equal model, and add it to `built`.

    Raises whatever the task raises when it cannot be built.
    """
    training = {*BACKBONE_OPTIONS, *(item.name for item in fields(FitOptions))}
    shape = {name: value for name, value in recipe_values(job).items() if name not in training}
    key = json.dumps([job.step.recipe, job.backbone, _overrides(job), shape], default=str)
    if job.step.kind != "run" or key in built:
        return
    built.add(key)
    task = load_task(job.step.recipe)
    command = parsed_command(job)
    spec = command.resolved(task.from_scratch, weights="random", load="strict")
    command.check_flags(spec)
    command.fit_backbone(spec, task)
    task.check_words(spec, command.options)
    _on_meta(lambda: task.untrained_learner(spec, command.options), spec)


def _overrides(job: SweepJob) -> Overrides:
    """Return the parts of the backbone that a job's command names, without the weights."""
    names = {*job.options} & {*BACKBONE_OPTIONS} - {"weights", "load"}
    return tuple((name, _hashable(job.options[name])) for name in sorted(names))


def _operations_at(job: SweepJob, size_option: str = "size") -> float:
    """Return the operations of a forward pass of one image, of the size that an option says, through a job's backbone.

    Raises whatever the backbone raises when it cannot be built or takes no image of this size.
    """
    size = _hashable(recipe_values(job).get(size_option) or 224)
    return _operations(job.backbone, size, _overrides(job))


@cache
def _operations(backbone: str, size: Any, overrides: Overrides) -> float:
    """See `_operations_at`; the sides are rounded up, as default sizes are and as detectors pad images."""
    spec = resolve(backbone, **{**dict(overrides), "weights": "random", "load": "strict"})
    height, width = (spec.cover(side) for side in sides(size))
    return float(_on_meta(lambda: flops(create(spec, img_size=(height, width)), (height, width))["total"], spec))


def _on_meta(make: Callable[[], Any], spec: BackboneSpec) -> Any:
    """Call `make` on the meta device; a user's code that makes its own tensors there is called on the CPU instead."""
    try:
        with torch.device("meta"):
            return make()
    except Exception:
        if not spec.files:
            raise
    return make()


def _hashable(value: Any) -> Any:
    """Return a list as a tuple, and other values as they are."""
    return tuple(value) if isinstance(value, list) else value
