"""Prints what a command is about to do, before anything heavy is imported."""

import sys

from transfer.cli.layers import flag_values
from transfer.cli.recipe import Recipe
from transfer.core.errors import print_safe, shortened
from transfer.core.process import ranks_from_environment


def announce(program: str, argv: list[str], recipe: Recipe) -> None:
    """Print on stderr what a command is about to do, before anything is imported that takes time.

    Args:
        program: the words of the command, as "run linear".
        argv: the arguments after them.
        recipe: has the dataset where no argument names one.
    """
    if {"-h", "--help", "--help-all", "--dry-run"} & {*argv} or not ranks_from_environment().first:
        return
    values = {name: flag_values(argv, f"--{name}") for name in ("backbone", "dataset", "config")}
    if not values["dataset"] and not values["config"]:
        smoke = recipe.smoke_values() if "--smoke" in argv and recipe.smoke.is_file() else {}
        values["dataset"] = smoke.get("dataset") or recipe.values().get("dataset") or []
    said = ", ".join(f"{name} {shortened(words, 3)}" for name, words in values.items() if words)
    print_safe(f"{program}: {said or 'checking its options'}", file=sys.stderr, flush=True)
