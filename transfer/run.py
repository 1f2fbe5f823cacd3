"""`python -m transfer.run TASK --backbone NAME [--dataset NAME ...] [flags]`: train or probe, score, record, print."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from transfer.cli.command import Command, read_command
from transfer.cli.recipe import task_recipe
from transfer.core.errors import Stopped, UsageError, errors_together, has_kept, kept, print_safe
from transfer.core.exports import seed_exports
from transfer.core.process import ranks_from_environment

if TYPE_CHECKING:
    from transfer.evaluation.preflight import ResolvedInputs
    from transfer.records.record import Record
    from transfer.task import Task


USAGE = """usage: python -m transfer.run TASK --backbone NAME [--dataset NAME ...] [options]

`TASK --help` shows the common options, `TASK --help-all` all; `--list KIND` lists tasks, backbones,
datasets, stems, ... TASK may be your own, as my_task.py:TASK.

  python -m transfer.run reid --backbone dino_s16_convstem --lr 5e-2 --smoke
  python -m transfer.run reid --backbone dino_s16 --data FOLDER --lr 1.6e-3 --seeds 0 1 2

Exit status: 0 scores obtained or reused, 1 error, 2 wrong arguments, 3 training failed (recorded),
143 stopped by a signal (checkpoint saved)."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    from transfer.cli.entry import exit_on_user_error

    return exit_on_user_error(_main, argv, usage=USAGE, listed=("tasks", "backbones", "datasets"))


def _main(argv: list[str]) -> int:
    if argv[0].startswith("-"):
        raise UsageError(f"the task must come first, before {argv[0]}\n{USAGE}")
    recipe, arguments = task_recipe(argv[0]), argv[1:]
    announce(f"run {argv[0]}", arguments)
    with errors_together():
        from transfer.task import load_task

        task = load_task(recipe.name)
        if task.from_scratch:
            raise UsageError(f"{recipe.name}: is a pretraining method; run it by `python -m transfer.pretrain`")
        command = read_command(recipe, task.options, arguments)
        commands = commands_with_inputs(command, task)
    return carry_out("transfer.run", [recipe.name, *arguments], commands, task)


def announce(program: str, argv: list[str]) -> None:
    """Print on stderr that a command, such as "run linear", begins, before anything is imported that takes time."""
    if ranks_from_environment().first and {"-h", "--help", "--help-all", "--dry-run"}.isdisjoint(argv):
        print_safe(f"{program}: checking the command", file=sys.stderr, flush=True)


def carry_out(module: str, words: list[str], commands: "list[tuple[Command, ResolvedInputs]]", task: "Task") -> int:
    """Submit or execute a command, publish the weights of a pretraining, and return the exit status.

    Args:
        module, words: the command as it was given, for a job.
        commands: of `commands_with_inputs`.
    """
    command = commands[0][0]
    if command.submitted:
        from transfer.launch.slurm import run_as_job

        return run_as_job(module, words, command)
    from transfer.evaluation.weights_export import publish_export
    from transfer.records.store import write_result

    status, records = execute(commands, task)
    for record in records if task.from_scratch else ():
        if folder := publish_export(record, command.run, task.options):
            print_safe(f"weights: {folder}", file=sys.stderr)

    write_result(command.run.result_file, records, status)
    return status


def commands_with_inputs(
    command: "Command", task: "Task", *, say: bool = True
) -> "list[tuple[Command, ResolvedInputs]]":
    """Return the command for each of its weights, with what it needs besides its data, after all checks that need
    neither torch nor the content of data.

    A job checks weights and data where it runs, and a dry run after it has printed what it would do.

    Args:
        say: whether what the program chose goes to stderr.

    Raises:
        UserError: flags without effect, options that the task or the backbone cannot have, or missing inputs; one error
            names all of them.
    """
    from transfer.evaluation.preflight import check_dataset_names

    with errors_together(join=True):
        check_dataset_names(command, task)
        commands = each_weights(command, task.from_scratch)
        inputs = [_inputs_of(each, task) for each in commands]
    if say and ranks_from_environment().first:
        lines = commands[0].choices(inputs[0].spec, task.from_scratch)
        if len(commands) > 1:
            pairs = [
                f"{each.backbone.weights[0]} with task seed {' '.join(map(str, each.run.seeds))}" for each in commands
            ]
            lines.append(f"{len(commands)} weights: {', '.join(pairs)}")
        for line in lines:
            print_safe(line, file=sys.stderr)
    return list(zip(commands, inputs, strict=True))


def _inputs_of(command: "Command", task: "Task") -> "ResolvedInputs":
    from transfer.evaluation.preflight import ResolvedInputs, find_inputs

    spec = command.resolved(task.from_scratch)
    command.check_flags(spec)
    if not (has_kept() and spec.weights.startswith("timm")):  # fitting them imports timm
        command.fit_backbone(spec, task)
    with kept():
        task.check_words(spec, command.options)
    return ResolvedInputs(spec) if command.submitted or command.run.dry_run else find_inputs(command, task, spec)


def execute(commands: "list[tuple[Command, ResolvedInputs]]", task: "Task") -> "tuple[int, list[Record]]":
    """Execute commands and print the table of their records, or with `--dry-run` how they differ from the recipe.

    Args:
        commands: of `commands_with_inputs`.

    Returns:
        The exit status, and the records, which only the first rank has.
    """
    command = commands[0][0]
    if command.run.dry_run:
        from transfer.evaluation.preflight import find_inputs

        print_safe("\n".join(command.differences() or ["no option differs from the recipe"]))
        commands = [(each, find_inputs(each, task, inputs.spec)) for each, inputs in commands]
    from transfer.evaluation.evaluator import evaluate_each
    from transfer.report.tables.text import run_table

    try:
        evaluation = evaluate_each(commands, task)
    except Stopped:
        return Stopped.exit_status, []
    records = evaluation.records if ranks_from_environment().first else []
    if records:
        print_safe(run_table(records, command.run.out))
        for record in records:
            if record.reason and (record.not_judged or record.training_failed):
                ended = "not checked for failure" if record.not_judged else record.status.replace("_", " ")
                print_safe(f"{record.run_id}: {ended}: {record.reason}", file=sys.stderr)
    return evaluation.exit_status, records


def each_weights(command: Command, from_scratch: bool) -> list[Command]:
    """Return the command with each of its weights; a folder with the exports of several seeds stands for all of them.

    As many seeds as weights are paired in order; any other number of seeds is used with each of the weights.
    """
    names, seeds = command.backbone.weights, command.run.seeds
    if names == ("config",) and not from_scratch and seed_exports(default := command.resolved(False).weights):
        names = (default,)
    weights = list[str]()
    for name in names:
        weights += seed_exports(name) or [name]
    commands = []
    for number, name in enumerate(weights):
        its_seeds = (seeds[number],) if len(seeds) == len(weights) else seeds
        backbone, run = replace(command.backbone, weights=(name,)), replace(command.run, seeds=its_seeds)
        commands.append(replace(command, backbone=backbone, run=run))
    return commands


if __name__ == "__main__":
    sys.exit(main())
