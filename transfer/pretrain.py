"""`python -m transfer.pretrain RECIPE --backbone NAME --dataset NAME [flags]`: pretrain, record, export the weights."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from transfer.core.errors import UsageError, errors_together

if TYPE_CHECKING:
    from transfer.runs import RunSet

USAGE = """usage: python -m transfer.pretrain RECIPE --backbone NAME [--dataset NAME] [options]

`RECIPE --help` shows the common options, `RECIPE --help-all` all; `--list KIND` lists recipes,
backbones, datasets, ... RECIPE may be a YAML file, or your method, as my_method.py:METHOD. The
export is in weights/NAME, for `python -m transfer.run TASK --backbone weights/NAME`.

  python -m transfer.pretrain dino --backbone tiny --smoke
  python -m transfer.pretrain dino --backbone dino_s16 --data FOLDER --launcher slurm --nodes 2

Exit status: 0 weights exported, 1 error, 2 wrong arguments, 3 training failed (recorded, not
exported), 143 stopped by a signal (checkpoint saved)."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    from transfer.cli.entry import exit_on_user_error

    return exit_on_user_error(_main, argv, usage=USAGE, listed=("recipes", "backbones", "datasets"))


def _main(argv: list[str]) -> int:
    from transfer.cli.command import read_command
    from transfer.cli.options import PretrainRunOptions
    from transfer.cli.recipe import method_of, pretraining_recipe
    from transfer.core.user_code import is_in_file
    from transfer.run import announce, carry_out, commands_with_inputs

    if argv[0].startswith("-"):
        raise UsageError(f"the recipe must come first, before {argv[0]}\n{USAGE}")
    recipe, arguments = pretraining_recipe(argv[0]), argv[1:]
    name = method_of(recipe)
    announce(f"pretrain {argv[0]}", arguments)
    with errors_together():
        from transfer.evaluation.weights_export import pretraining_task
        from transfer.task import load_task

        method = load_task(name)
        command = read_command(recipe, method.options, arguments, PretrainRunOptions)
        task = pretraining_task(command, method, recipe.name)
        commands = commands_with_inputs(command, task)
    recipe_name = recipe.name if is_in_file(recipe.name) else str(recipe.path)
    return carry_out("transfer.pretrain", [recipe_name, *arguments], commands, task)


class _CallableModule(ModuleType):
    """`transfer.pretrain` is this module and the function of the Python interface: `transfer.pretrain("dino", ...)`."""

    def __call__(self, *arguments: Any, **options: Any) -> "RunSet":
        """Pretrain; see `transfer.api.pretrain`."""
        from transfer.api import pretrain

        return pretrain(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule


if __name__ == "__main__":
    sys.exit(main())
