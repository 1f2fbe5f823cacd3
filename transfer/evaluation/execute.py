"""Executes a parsed command: prints what it would do, or evaluates it and prints the table of its records."""

import sys
from typing import TYPE_CHECKING

from backbones.errors import print_safe
from backbones.runtime.ranks import ranks_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from backbones.spec import BackboneSpec
    from tasks.task import Task
    from transfer.cli.command import Command
    from transfer.evaluation.planned_run import PlannedRun
    from transfer.records.store import Record


def checked_spec(command: "Command", task: "Task", *, say: bool = True) -> "BackboneSpec":
    """Return the backbone of a command whose words fit each other.

    Args:
        say: whether what the program chose goes to stderr.

    Raises:
        UsageError: a flag has no effect, or the task cannot do what the words ask for.
    """
    spec = command.resolved(task.from_scratch)
    command.check_flags(spec)
    command.fit_backbone(spec, task)
    task.check_words(spec, command.options)
    for line in command.choices(spec, task.from_scratch) if say and ranks_from_environment().first else ():
        print_safe(line, file=sys.stderr)
    return spec


def execute(
    command: "Command", task: "Task", check_run: "Callable[[PlannedRun], None] | None" = None
) -> "tuple[int, list[Record]]":
    """Execute a parsed command and print the table of its records, or with `--dry-run` its options.

    Args:
        check_run: see `transfer.evaluation.evaluator.evaluate`.

    Returns:
        The exit status, and the records, which only the first rank has.
    """
    spec = checked_spec(command, task)
    if command.run.dry_run:
        from backbones.settings import plain, write_yaml

        groups = (command.run, command.backbone, command.options)
        print_safe(write_yaml({key: value for group in groups for key, value in plain(group).items()}), end="")
        print_safe("# the backbone\n" + write_yaml({"resolved": spec.as_dict()}), end="")
        return 0, []
    from backbones.errors import Stopped
    from transfer.evaluation.cross_set import evaluate_across
    from transfer.report.render.run_table import run_table

    try:
        evaluation = evaluate_across(command, task, check_run)
    except Stopped:
        return Stopped.exit_status, []
    if evaluation.records and evaluation.first_rank:
        print_safe(run_table(evaluation.records))
        for record in evaluation.records:
            if record.reason and (record.not_judged or record.training_failed):
                print_safe(f"{record.run_id}: {record.status.replace('_', ' ')}: {record.reason}", file=sys.stderr)
    return evaluation.exit_status, evaluation.records if evaluation.first_rank else []
