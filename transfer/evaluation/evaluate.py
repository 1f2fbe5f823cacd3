"""Command -> records: those that are there, and the runs that the evaluator makes for the others."""

import sys
from collections.abc import Callable
from functools import partial

from backbones.errors import print_safe
from tasks.task import Task
from transfer.cli.command import Command
from transfer.evaluation.inputs import ResolvedInputs
from transfer.evaluation.planned_run import PlannedRun
from transfer.evaluation.results import Evaluation
from transfer.evaluation.reuse import reuse


def evaluate(
    command: Command,
    task: Task,
    inputs: ResolvedInputs,
    check_run: Callable[[PlannedRun], None] | None = None,
    *,
    progress: bool = True,
) -> Evaluation:
    """Execute every run of a command that has no record yet; the others continue if one fails.

    Args:
        task: the task, or its facts.
        inputs: what the command needs, found without its data.
        check_run: is called with every planned run before the first one starts, and may raise.
        progress: whether bars and lines about the runs go to stderr.

    Raises:
        UserError: something is missing; raised before anything runs, with all that is missing in one message.
        Stopped: a signal arrived; the state of the run is saved.
    """
    say = partial(print_safe, file=sys.stderr) if progress else lambda text: None
    if not command.run.dry_run and (finished := reuse(command, task, inputs, check_run, say)):
        return finished
    from transfer.evaluation.evaluator import evaluate_runs

    return evaluate_runs(command, task.complete(), check_run, inputs, progress=progress)
