"""`python -m transfer.run TASK --backbone NAME [--dataset NAME ...] [flags]`: train or probe, score, record, print."""

import sys
from typing import TYPE_CHECKING

from backbones.errors import UsageError, print_safe
from transfer.evaluation.execute import checked_spec, execute

if TYPE_CHECKING:
    from transfer.cli.command import Recipe

USAGE = """usage: python -m transfer.run TASK --backbone NAME [--dataset NAME ...] [flags]
       python -m transfer.run TASK --help      all flags of a task
       python -m transfer.run --list           tasks, backbones and datasets

TASK may be a task of your own, as my_task.py:TASK.

examples:
  python -m transfer.run reid --backbone dino_s16_convstem --lr 5e-2 --smoke
  python -m transfer.run reid --backbone dino_s16 --dataset market1501 --data FOLDER --lr 1.6e-3 --seeds 0 1 2
  python -m transfer.run detect --backbone dino_s16 --data FOLDER --launcher slurm --nodes 2 --gpus 8

exit status: 0 scores obtained or reused, 3 a training broke down (recorded), 1 something failed, 2 wrong arguments,
143 stopped by a signal with its state saved"""


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    from backbones.runtime.parent_watch import end_with_parent
    from transfer.cli.command import exit_on_user_error

    end_with_parent()
    return exit_on_user_error(_main, argv, usage=USAGE)


def _main(argv: list[str]) -> int:
    from transfer.cli.command import task_recipe
    from transfer.cli.early_checks import check_names_in

    if argv[0] == "--list":
        return _list()
    if argv[0].startswith("-"):
        raise UsageError(f"the task comes first, before {argv[0]}\n{USAGE}")
    recipe = task_recipe(argv[0])
    check_names_in(argv[1:], recipe)
    return _run(recipe, argv[1:])


def _list() -> int:
    from backbones.archs import timm_names
    from backbones.data.spec import dataset_names
    from backbones.spec import backbone_names
    from transfer.cli.command import task_names

    for title, names in (("tasks", task_names()), ("backbones", backbone_names()), ("datasets", dataset_names())):
        print_safe(f"{title}:\n  " + "\n  ".join(names))
    print_safe(
        f"Any of timm's {len(timm_names())} models is a backbone too; YAML files name your own backbones and data "
        "sets, and my_task.py:TASK is a task of your own."
    )
    return 0


def _run(recipe: "Recipe", arguments: list[str]) -> int:
    from tasks.task import load_facts
    from transfer.cli.command import read_command
    from transfer.records import command_result

    task = load_facts(recipe.name)
    command = read_command(recipe, task.options, arguments)
    if command.launch.launcher == "slurm" and not command.run.dry_run:
        from transfer.launch.single_job import launch

        checked_spec(command, task)
        return launch("transfer.run", [recipe.name, *arguments], command)
    status, records = execute(command, task)
    command_result.write(command.run.result_file, records, status)
    return status


def command() -> None:
    """Run the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
