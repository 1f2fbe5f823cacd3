"""`python -m transfer.doctor completion bash` prints what completes `transfer-run` and `transfer-pretrain`."""

from dataclasses import dataclass
from typing import Any, Literal

from backbones.data.spec import dataset_names
from backbones.settings import Positional, completion_script, flat_schema, parse
from backbones.spec import backbone_names
from transfer.cli.command import pretraining_names, pretraining_recipe, task_names
from transfer.cli.options import BackboneOptions, LaunchOptions, PretrainRunOptions, RunOptions
from transfer.cli.recipe_method import method_of


@dataclass(kw_only=True)
class CompletionOptions:
    """Print the script that completes `transfer-run` and `transfer-pretrain`: tasks, recipes, options and values."""

    shell: Positional[Literal["bash"]]
    """The shell; zsh reads the same script after `bashcompinit`."""


def print_completion(argv: list[str]) -> int:
    """Print the script for the shell that the arguments name."""
    options = parse(CompletionOptions, argv, prog="python -m transfer.doctor completion")
    for program, schemas in (("transfer-run", _tasks()), ("transfer-pretrain", _recipes())):
        print(completion_script(program, schemas, options.shell))
    return 0


def _tasks() -> dict[str, type[Any]]:
    from tasks.task import load_facts

    return {name: _schema(RunOptions, load_facts(name).options) for name in task_names()}


def _recipes() -> dict[str, type[Any]]:
    from backbones.pretrain.method import load_facts

    methods = {name: load_facts(method_of(pretraining_recipe(name))) for name in pretraining_names()}
    return {name: _schema(PretrainRunOptions, method.options) for name, method in methods.items()}


def _schema(run: type[Any], options: type[Any]) -> type[Any]:
    """Return the options of a command, with the shipped names as the values of `--backbone` and `--dataset`."""
    backbone: Any = Literal[*backbone_names()]
    dataset: Any = Literal[*dataset_names()]
    kinds = {"backbone": backbone, "dataset": tuple[dataset, ...]}
    named: Any = type(run.__name__, (run,), {"__annotations__": kinds, "backbone": backbone_names()[0]})
    run = dataclass(kw_only=True)(named)
    return flat_schema(run=run, backbone=BackboneOptions, options=options, launch=LaunchOptions)
