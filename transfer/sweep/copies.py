"""Says before a sweep starts which of its runs will be copied from baselines, and what differs where none is."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from transfer.core.errors import count, shortened
from transfer.core.process import ranks_from_environment
from transfer.engine.device import choose_device, choose_precisions
from transfer.evaluation.planned_run import PlannedRun
from transfer.evaluation.preflight import find_backbone
from transfer.experiments.grid import SweepJob
from transfer.records.baselines import protocol_mismatch
from transfer.sweep.inputs import JobData, parsed_command


def planned_copies(jobs: Sequence[SweepJob], data: JobData, folders: Sequence[Path]) -> tuple[set[str], str]:
    """Return the names of jobs whose run a baseline has, and a text on how many, and how others differ from baselines.

    Jobs that start from another job's weights are not among them, as their runs are not known yet.

    Args:
        jobs: the jobs, which run on this machine.
        data: that of the jobs.
        folders: the baselines, which the arguments besides the jobs' own have, too.
    """
    copied, mismatches = set[str](), dict[str, None]()
    first = [job for job in jobs if job.parent is None]
    for job in first:
        with contextlib.suppress(Exception):  # a user's code may raise any; the job says what is wrong
            run = _planned_run(job, data)
            if run.baseline:
                copied.add(job.name)
            elif text := protocol_mismatch(folders, run.run_key, run.task.name):
                mismatches[text] = None
    later = f"; {len(jobs) - len(first)} more start from their weights" if len(first) < len(jobs) else ""
    text = f"{len(copied)} of {count(len(first), 'run')} copied from {shortened(folders)}{later}"
    return copied, "\n".join([text, *mismatches])


def _planned_run(job: SweepJob, data: JobData) -> PlannedRun:
    """Return the run of a job on this machine's device."""
    command, task, dataset = parsed_command(job, data.extra), job.step.task, data.of(job)
    inputs = find_backbone(command, task)
    command.fit_backbone(inputs.spec, task)
    fitted = command.fit_data(task, inputs.spec, dataset)
    device = choose_device(command.run.device, ranks_from_environment(1))
    precisions = choose_precisions(command.options, device)
    return PlannedRun(fitted, task, inputs, (job.dataset,), dataset, job.seed, *precisions, device.type)
