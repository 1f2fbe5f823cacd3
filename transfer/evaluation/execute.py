"""Executes a parsed command: prints what it would do, or evaluates it and prints the table of its records."""

import sys
from typing import TYPE_CHECKING

from backbones.errors import errors_together, kept, print_safe
from backbones.runtime.ranks import ranks_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.task import Task
    from transfer.cli.command import Command
    from transfer.evaluation.inputs import ResolvedInputs
    from transfer.evaluation.planned_run import PlannedRun
    from transfer.records.store import Record


def checked_inputs(command: "Command", task: "Task", *, say: bool = True) -> "ResolvedInputs":
    """Return what a command needs besides its data, after all checks that need neither torch nor the content of data.

    A job checks weights and data where it runs, and a dry run after it has printed what it would do.

    Args:
        say: whether what the program chose goes to stderr.

    Raises:
        UserError: flags without effect, options that the task or the backbone cannot have, or missing inputs; one error
            names all of them.
    """
    from transfer.evaluation.inputs import ResolvedInputs
    from transfer.evaluation.preflight import find_inputs

    with errors_together(join=True):
        spec = command.resolved(task.from_scratch)
        command.check_flags(spec)
        command.fit_backbone(spec, task)
        with kept():
            task.check_words(spec, command.options)
        inputs = ResolvedInputs(spec) if command.submitted or command.run.dry_run else find_inputs(command, task, spec)
    for line in command.choices(spec, task.from_scratch) if say and ranks_from_environment().first else ():
        print_safe(line, file=sys.stderr)
    return inputs


def execute(
    command: "Command",
    task: "Task",
    inputs: "ResolvedInputs",
    check_run: "Callable[[PlannedRun], None] | None" = None,
) -> "tuple[int, list[Record]]":
    """Execute a parsed command and print the table of its records, or with `--dry-run` how it differs from the recipe.

    Args:
        inputs: of `checked_inputs`.
        check_run: see `transfer.evaluation.evaluate.evaluate`.

    Returns:
        The exit status, and the records, which only the first rank has.
    """
    if command.run.dry_run:
        from transfer.evaluation.preflight import find_inputs

        print_safe("\n".join(command.differences() or ["no option differs from the recipe"]))
        inputs = find_inputs(command, task, inputs.spec)
    from backbones.errors import Stopped
    from transfer.evaluation.cross_set import evaluate_across
    from transfer.report.render.run_table import run_table

    try:
        evaluation = evaluate_across(command, task, inputs, check_run)
    except Stopped:
        return Stopped.exit_status, []
    if evaluation.records and evaluation.first_rank:
        print_safe(run_table(evaluation.records))
        for record in evaluation.records:
            if record.reason and (record.not_judged or record.training_failed):
                print_safe(f"{record.run_id}: {record.status.replace('_', ' ')}: {record.reason}", file=sys.stderr)
    return evaluation.exit_status, evaluation.records if evaluation.first_rank else []
