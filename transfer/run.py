"""`python -m transfer.run TASK --backbone NAME [--dataset NAME ...] [flags]`: train or probe, score, record, print."""

import sys

from backbones.errors import UsageError, errors_together

USAGE = """usage: python -m transfer.run TASK --backbone NAME [--dataset NAME ...] [options]

`TASK --help` shows the common options, `TASK --help-all` all; `--list KIND` lists tasks, backbones,
datasets, stems, ... TASK may be your own, as my_task.py:TASK.

  python -m transfer.run reid --backbone dino_s16_convstem --lr 5e-2 --smoke
  python -m transfer.run reid --backbone dino_s16 --data FOLDER --lr 1.6e-3 --seeds 0 1 2

Exit status: 0 scores obtained or reused, 1 error, 2 wrong arguments, 3 training failed (recorded),
143 stopped by a signal (checkpoint saved)."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    from backbones.runtime.parent_watch import end_with_parent
    from transfer.cli.entry import exit_on_user_error

    end_with_parent()
    return exit_on_user_error(_main, argv, usage=USAGE, listed=("tasks", "backbones", "datasets"))


def _main(argv: list[str]) -> int:
    from transfer.cli.announcement import announce
    from transfer.cli.command import read_command, task_recipe

    if argv[0].startswith("-"):
        raise UsageError(f"the task must come first, before {argv[0]}\n{USAGE}")
    recipe, arguments = task_recipe(argv[0]), argv[1:]
    announce(f"run {argv[0]}", arguments, recipe)
    from transfer.evaluation.execute import checked_inputs, execute
    from transfer.records import command_result

    with errors_together():
        from tasks.task import load_facts

        task = load_facts(recipe.name)
        command = read_command(recipe, task.options, arguments)
        commands = checked_inputs(command, task)
    if command.submitted:
        from transfer.launch.single_job import launch

        return launch("transfer.run", [recipe.name, *arguments], command)
    status, records = execute(commands, task)
    command_result.write(command.run.result_file, records, status)
    return status


if __name__ == "__main__":
    sys.exit(main())
