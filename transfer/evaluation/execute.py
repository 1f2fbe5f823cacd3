"""Executes a parsed command: prints what it would do, or evaluates it and prints the table of its records."""

import sys
from typing import TYPE_CHECKING

from backbones.errors import errors_together, has_kept, kept, print_safe
from backbones.runtime.ranks import ranks_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.task import Task
    from transfer.cli.command import Command
    from transfer.evaluation.inputs import ResolvedInputs
    from transfer.evaluation.planned_run import PlannedRun
    from transfer.records.store import Record


def checked_inputs(command: "Command", task: "Task", *, say: bool = True) -> "list[tuple[Command, ResolvedInputs]]":
    """Return the command for each of its weights, with what it needs besides its data, after all checks that need
    neither torch nor the content of data.

    A job checks weights and data where it runs, and a dry run after it has printed what it would do.

    Args:
        say: whether what the program chose goes to stderr.

    Raises:
        UserError: flags without effect, options that the task or the backbone cannot have, or missing inputs; one error
            names all of them.
    """
    from transfer.evaluation.each_weights import each_weights, pairing
    from transfer.evaluation.inputs import check_datasets

    with errors_together(join=True):
        check_datasets(command, task)
        commands = each_weights(command, task.from_scratch)
        inputs = [_checked_inputs(one, task) for one in commands]
    if say and ranks_from_environment().first:
        lines = commands[0].choices(inputs[0].spec, task.from_scratch)
        for line in [*lines, *([pairing(commands)] if len(commands) > 1 else [])]:
            print_safe(line, file=sys.stderr)
    return list(zip(commands, inputs, strict=True))


def _checked_inputs(command: "Command", task: "Task") -> "ResolvedInputs":
    from transfer.evaluation.inputs import ResolvedInputs
    from transfer.evaluation.preflight import find_inputs

    spec = command.resolved(task.from_scratch)
    command.check_flags(spec)
    if not (has_kept() and spec.weights.startswith("timm")):  # fitting them imports timm
        command.fit_backbone(spec, task)
    with kept():
        task.check_words(spec, command.options)
    return ResolvedInputs(spec) if command.submitted or command.run.dry_run else find_inputs(command, task, spec)


def execute(
    commands: "list[tuple[Command, ResolvedInputs]]",
    task: "Task",
    check_run: "Callable[[PlannedRun], None] | None" = None,
) -> "tuple[int, list[Record]]":
    """Execute commands and print the table of their records, or with `--dry-run` how they differ from the recipe.

    Args:
        commands: of `checked_inputs`.
        check_run: see `transfer.evaluation.evaluate.evaluate`.

    Returns:
        The exit status, and the records, which only the first rank has.
    """
    command = commands[0][0]
    if command.run.dry_run:
        from transfer.evaluation.preflight import find_inputs

        print_safe("\n".join(command.differences() or ["no option differs from the recipe"]))
        commands = [(one, find_inputs(one, task, found.spec)) for one, found in commands]
    from backbones.errors import Stopped
    from transfer.evaluation.evaluate import evaluate_each
    from transfer.report.render.run_table import run_table

    try:
        evaluation = evaluate_each(commands, task, check_run)
    except Stopped:
        return Stopped.exit_status, []
    if evaluation.records and evaluation.first_rank:
        print_safe(run_table(evaluation.records, command.run.out))
        for record in evaluation.records:
            if record.reason and (record.not_judged or record.training_failed):
                ended = "not checked for failure" if record.not_judged else record.status.replace("_", " ")
                print_safe(f"{record.run_id}: {ended}: {record.reason}", file=sys.stderr)
    return evaluation.exit_status, evaluation.records if evaluation.first_rank else []
