"""`python -m transfer.pretrain RECIPE --backbone NAME --dataset NAME [flags]`: pretrain, record, export the weights."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from backbones.errors import UsageError, print_safe

if TYPE_CHECKING:
    from transfer.api.run_set import RunSet
    from transfer.cli.command import Recipe

USAGE = """usage: python -m transfer.pretrain RECIPE --backbone NAME [--dataset NAME] [flags]
       python -m transfer.pretrain RECIPE --help      all flags of a recipe
       python -m transfer.pretrain --list             recipes, backbones and datasets

The weights go to weights/NAME, where `python -m transfer.run TASK --backbone NAME` finds them. RECIPE may be a YAML,
or a method of your own, as my_method.py:METHOD.

examples:
  python -m transfer.pretrain dino --backbone tiny --smoke
  python -m transfer.pretrain deit --backbone deit_s16_convstem --dataset imagenet1k --data FOLDER
  python -m transfer.pretrain dino --backbone dino_s16 --data FOLDER --launcher slurm --nodes 2 --gpus 8

exit status: 0 weights exported, 3 the training broke down (recorded, nothing exported), 1 something failed,
2 wrong arguments, 143 stopped by a signal with its state saved"""


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    from backbones.runtime.parent_watch import end_with_parent
    from transfer.cli.command import exit_on_user_error

    end_with_parent()
    return exit_on_user_error(_main, argv, usage=USAGE)


def _main(argv: list[str]) -> int:
    from transfer.cli.command import pretraining_recipe
    from transfer.cli.early_checks import check_names_in
    from transfer.cli.options import PretrainRunOptions
    from transfer.cli.recipe_method import method_of

    if argv[0] == "--list":
        return _list()
    if argv[0].startswith("-"):
        raise UsageError(f"the recipe comes first, before {argv[0]}\n{USAGE}")
    recipe = pretraining_recipe(argv[0])
    method = method_of(recipe)
    check_names_in(argv[1:], recipe, PretrainRunOptions)
    return _run(recipe, method, argv[1:])


def _list() -> int:
    from backbones.data.spec import dataset_names
    from backbones.spec import backbone_names
    from transfer.cli.command import pretraining_names

    for title, names in (
        ("recipes", pretraining_names()),
        ("backbones", backbone_names()),
        ("datasets", dataset_names()),
    ):
        print_safe(f"{title}:\n  " + "\n  ".join(names))
    return 0


def _run(recipe: "Recipe", name: str, arguments: list[str]) -> int:
    from backbones.pretrain.method import load_facts
    from transfer.cli.command import read_command
    from transfer.cli.options import PretrainRunOptions
    from transfer.evaluation.execute import checked_spec, execute
    from transfer.evaluation.pretraining_run import PretrainingRun
    from transfer.records import command_result

    method = load_facts(name)
    command = read_command(recipe, method.options, arguments, PretrainRunOptions)
    pretraining = PretrainingRun.of(command, method, recipe.name)
    if command.launch.launcher == "slurm" and not command.run.dry_run:
        from backbones.user_code import is_in_file
        from transfer.launch.single_job import launch

        checked_spec(command, pretraining.task)
        named = recipe.name if is_in_file(recipe.name) else str(recipe.path)
        return launch("transfer.pretrain", [named, *arguments], command)
    status, records = execute(command, pretraining.task, pretraining.check_target)
    for record in records:
        if folder := pretraining.publish(record):
            print_safe(f"weights: {folder}", file=sys.stderr)
    command_result.write(command.run.result_file, records, status)
    return status


class _CallableModule(ModuleType):
    """`transfer.pretrain` is this module and the function of the Python interface: `transfer.pretrain("dino", ...)`."""

    def __call__(self, *arguments: Any, **options: Any) -> "RunSet":
        """Pretrain; see `transfer.api.evaluate.pretrain`."""
        from transfer.api.evaluate import pretrain

        return pretrain(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule


def command() -> None:
    """Run the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
