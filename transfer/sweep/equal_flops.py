"""The epochs with which all variants of a sweep pretrain with equal FLOPs."""

from dataclasses import replace
from typing import Any

from transfer.cli.recipe import scaled_spans
from transfer.core.errors import UsageError, first_line
from transfer.core.options import Span, noted, plain
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.sweep_file import SweepFile
from transfer.sweep.cost_estimate import training_operations
from transfer.sweep.inputs import parsed_command


def with_equal_flops(sweep: SweepFile) -> SweepFile:
    """Return the sweep with epochs for each variant such that pretraining takes the FLOPs of the second variant's.

    That is the first of `--against`, or the backbone with its own parts, and has its recipe's epochs. Warm-up and other
    spans are scaled with the epochs. A schedule that is held per epoch moves by step in all variants, unless the spans
    of all stay whole epochs.

    Raises:
        UsageError: the variants do not pretrain, or operations cannot be counted or are not the same in all jobs.
    """
    assert sweep.vary
    step = sweep.steps[sweep.vary]
    if step.kind != "pretrain":
        raise UsageError(f"--equal: step {step.name} of {sweep.name} is not a pretraining; tasks keep their epochs")
    pretrainings = [_pretraining(sweep, row) for row in sweep.rows]
    budget, options = pretrainings[1]
    names = ["epochs", *(name for name in noted(step.task.options, Span) if options[name])]
    changes = [scaled_spans(step.task.options, options, budget / operations, names) for operations, _ in pretrainings]
    held = {"schedule": "step"} if any("schedule" in change for change in changes) else {}
    rows = []
    for row, change in zip(sweep.rows, changes, strict=True):
        new = {name: [value] for name, value in (change | held).items() if value != options[name]}
        rows.append(row | {step.name: row[step.name] | new})
    variants = [sweep.report["compare"][0][0], *(other for _, other in sweep.report["compare"])]
    epochs = {variant: change["epochs"] for variant, change in zip(variants, changes, strict=True)}
    about = f"{sweep.about}; in pretraining the same FLOPs in place of the same epochs"
    return replace(sweep, about=about, rows=tuple(rows), epochs=epochs)


def _pretraining(sweep: SweepFile, row: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the operations on a training image of a row's pretraining, and its options. Raises UsageError."""
    jobs = [job for job in expand(replace(sweep, rows=(row,))) if job.step.name == sweep.vary]
    names = ("epochs", "schedule", *noted(jobs[0].step.task.options, Span))
    pretrainings = dict[str, tuple[float, dict[str, Any]]]()
    for job in jobs:
        operations, options = _operations(job), plain(parsed_command(job).options)
        pretrainings.setdefault(repr([operations, [options[name] for name in names]]), (operations, options))
    if len(pretrainings) > 1:
        raise UsageError(f"--equal: step {sweep.vary} must have one backbone, size and schedule, of equal epochs")
    return next(iter(pretrainings.values()))


def _operations(job: SweepJob) -> float:
    try:
        operations, why = training_operations(job), "there are none"
    except Exception as error:  # raised by a user's code, too
        operations, why = 0.0, first_line(error)
    if not operations:
        raise UsageError(f"--equal flops: the operations of {job.title} cannot be counted: {why}")
    return operations
