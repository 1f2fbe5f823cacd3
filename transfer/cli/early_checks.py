"""Checks the names on a command line before its task is imported, and torch with it. Imports no torch."""

from dataclasses import fields

from backbones.data.spec import resolve_dataset
from backbones.errors import UsageError, did_you_mean
from backbones.settings import CONFIGS
from backbones.spec import check_name
from transfer.cli.command import Recipe
from transfer.cli.options import BackboneOptions, LaunchOptions, RunOptions
from transfer.cli.yaml_layers import flag_values


def check_names_in(argv: list[str], recipe: Recipe, run: type[RunOptions] = RunOptions) -> None:
    """Check the names of datasets, of the backbone and of options in flags.

    Args:
        argv: the arguments after the name of the task or recipe.
        recipe: the recipe of the task or method. A shipped one has a value for every option.
        run: the dataclass of the options that all commands of this kind share.

    Raises:
        UsageError: a name is unknown; the message has the nearest names.
    """
    for name in flag_values(argv, "--dataset"):
        resolve_dataset(name)
    for name in flag_values(argv, "--backbone")[:1]:
        check_name(name)
    if recipe.path.is_relative_to(CONFIGS) and not {"-h", "--help"} & {*argv}:
        shared = {item.name for group in (run, BackboneOptions, LaunchOptions) for item in fields(group)}
        _check_options(argv, {*shared, *recipe.values()}, recipe.program)


def _check_options(argv: list[str], known: set[str], program: str) -> None:
    flags = [argument.partition("=")[0] for argument in argv if argument.startswith("--") and argument != "--"]
    for flag in flags:
        name = flag.removeprefix("--").replace("-", "_")
        if not {name, name.removeprefix("no_")} & known:
            near = did_you_mean(flag, [f"--{option.replace('_', '-')}" for option in sorted(known)])
            raise UsageError(f"unknown option {flag}{near} (`{program} --help` lists them)")
