"""What the jobs of a sweep need: their parsed commands, the data that they open, and what is missing of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transfer.cli.command import Command, read_command
from transfer.cli.options import BACKBONE_OPTIONS, PretrainRunOptions, RunOptions
from transfer.core.errors import UsageError, UserError, attempt, errors_naming, errors_together, has_kept, kept, reject
from transfer.evaluation.preflight import ResolvedInputs, check_folders, check_weights, find_backbone, open_datasets
from transfer.experiments.grid import SweepJob

DATA_OPTIONS = ("subset", "label_fraction", "fraction_seed")
"""Options that choose images of a dataset."""


@dataclass
class JobData:
    """The datasets of jobs, each opened once."""

    extra: tuple[str, ...] = ()
    """Arguments besides the jobs' own, which say where data is."""
    opened: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """By step, name and `DATA_OPTIONS`."""

    def of(self, job: SweepJob) -> Any:
        """Return the dataset of a job. Raises UserError."""
        key = (job.step.name, job.dataset, *map(recipe_values(job).get, DATA_OPTIONS))
        if key not in self.opened:
            command = parsed_command(job, self.extra)
            inputs = ResolvedInputs(command.resolved(job.step.task.from_scratch, weights="random"))
            open_datasets(inputs, command, job.step.task)
            self.opened[key] = inputs.datasets[0][1]
        return self.opened[key]


def missing_inputs(jobs: Sequence[SweepJob], data: JobData, *, opens: bool) -> dict[str, list[str]]:
    """Return what jobs lack and how to get it, by their names: packages, data, and weights that no job makes.

    Each option's value is parsed once. Weights are loaded once, so that damaged ones and those of another model count
    as missing.

    Args:
        jobs: the jobs.
        data: that of the jobs.
        opens: whether to open it, too, and not only look for its folders.

    Raises:
        UsageError: lists what is wrong in options and datasets' files, and what is missing.
    """
    text_by_check = dict[tuple[str, object], str]()
    missing = dict[str, list[str]]()
    parsed_options = set[tuple[str, ...]]()
    with errors_together():
        for job in jobs:
            checks: dict[tuple[str, object], Callable[[SweepJob, Command], object]] = {}
            checks[job.step.name, None] = lambda job, _: job.step.task.check_installed()
            checks[job.step.name, job.dataset] = lambda job, command: data.of(job) if opens else check_folders(command)
            if job.parent is None:
                backbone_options = [repr(job.options.get(name)) for name in BACKBONE_OPTIONS]
                checks[job.step.name, (job.backbone, *backbone_options)] = _check_weights
            new_checks = [key for key in checks if key not in text_by_check]
            options = {(job.step.name, name, repr(value)) for name, value in job.options.items()}
            if new_checks or not options <= parsed_options:  # parsing takes a tenth of a second
                with kept():
                    command = parsed_command(job, data.extra)
                    parsed_options |= options
                    for key in new_checks:
                        text_by_check[key] = attempt(_missing, checks[key], job, command) or ""
            missing[job.name] = [text_by_check[key] for key in checks if text_by_check.get(key)]
        if has_kept():
            for text in filter(None, text_by_check.values()):
                reject(text)
    return {name: texts for name, texts in missing.items() if texts}


def _missing(check: Callable[[SweepJob, Command], object], job: SweepJob, command: Command) -> str:
    """Return what a check finds; empty if nothing. Raises UsageError."""
    try:
        with errors_together():
            check(job, command)
    except UsageError:
        raise
    except UserError as error:
        return str(error)
    return ""


def _check_weights(job: SweepJob, command: Command) -> None:
    inputs = find_backbone(command, job.step.task)
    command.fit_backbone(inputs.spec, job.step.task)
    check_weights(inputs, command, job.step.task)


def parsed_command(job: SweepJob, extra: tuple[str, ...] = ()) -> Command:
    """Parse a job's command, with arguments besides its own. Raises UsageError for a wrong option."""
    run = PretrainRunOptions if job.step.kind == "pretrain" else RunOptions
    with errors_naming(f"steps.{job.step.name}"), errors_together():
        return read_command(job.step.source, job.step.task.options, [*job.argv(Path())[2:], *extra], run)


def recipe_values(job: SweepJob) -> dict[str, Any]:
    """Return the values that a job's command combines: recipe, smoke layer, options."""
    source = job.step.source
    smoke = source.smoke_values() if job.options.get("smoke") and source.smoke.is_file() else {}
    return {**source.values(), **smoke, **job.options}
