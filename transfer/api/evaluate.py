"""`evaluate` and `pretrain`: the commands of their names for Python, with a `RunSet` as the result."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transfer.api.run_set import RunSet, RunsFailed, runs_of
from transfer.cli.command import Command, read_command
from transfer.cli.keywords import keyword_arguments
from transfer.cli.options import BackboneOptions, LaunchOptions, PretrainRunOptions, RunOptions
from transfer.cli.recipe import method_of, pretraining_recipe, task_recipe
from transfer.core import live_modules
from transfer.core.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from transfer.evaluation.planned_run import PlannedRun
    from transfer.task import Task

    BackboneArgument = str | Path | nn.Module | Callable[[], nn.Module]


def evaluate(
    task: str, *, backbone: "BackboneArgument", name: str | None = None, progress: bool = True, **options: Any
) -> RunSet:
    """Run a task, as `python -m transfer.run TASK` does, and return its runs. Finished runs are reused.

    Args:
        task: a name of `configs/tasks`: reid, fewshot, linear, knn, finetune, classify, detect, tokens; or a
            task of your own, as "my_task.py:TASK".
        backbone: what `--backbone` takes; or a live `nn.Module` that maps images [B, 3, H, W] in [0, 1] to features
            [B, D] (a model of timm is normalised by its own mean and std); or a class or function that returns one.
            A module is copied, so it stays as it is, and each seed starts from its weights. What a class or function
            makes is initialized again for each seed.
        name: what a live module is called; by default the name of its class.
        progress: show progress on stderr.
        options: the flags of the command line with `_` for `-`, as `dataset="market1501", lr=5e-2, seeds=[0, 1]`.

    Returns:
        One run for each dataset and seed, in this order.

    Raises:
        UsageError: an unknown task, option or value; the nearest names are in the message.
        MissingInput: data, weights or a library are not there; the message says how to get them.
        RunsFailed: a run ended without a record; `runs` of the error has the others.
        KeyboardInterrupt: the state of the run is saved, and the same call resumes from it.
    """
    from transfer.task import load_task

    recipe = task_recipe(task)
    loaded = load_task(recipe.name)
    groups = (RunOptions, BackboneOptions, loaded.options, LaunchOptions)
    arguments = keyword_arguments("evaluate", _with_backbone(backbone, name, options), groups)
    command = read_command(recipe, loaded.options, arguments, called="evaluate()")
    return _execute(command, loaded, progress)


def pretrain(
    recipe: str | Path, *, backbone: "BackboneArgument", name: str | None = None, progress: bool = True, **options: Any
) -> RunSet:
    """Pretrain a backbone, as `python -m transfer.pretrain RECIPE` does, and return its run.

    Args:
        recipe: a name of `configs/pretrain`, a YAML file, or a method of your own, as "my_method.py:METHOD".
        backbone: see `evaluate`.
        name: what the weights are called, by default as the backbone; they go to `EXPORT_DIR/NAME` (`export_dir=`).
        progress, options: see `evaluate`.

    Raises:
        As `evaluate`.
    """
    from transfer.core.process import ranks_from_environment
    from transfer.evaluation.weights_export import PretrainingRun
    from transfer.task import load_task

    read = pretraining_recipe(str(recipe))
    method = load_task(method_of(read))
    options = _with_backbone(backbone, name, options) | ({"name": name} if name else {})
    groups = (PretrainRunOptions, BackboneOptions, method.options, LaunchOptions)
    arguments = keyword_arguments("pretrain", options, groups)
    command = read_command(read, method.options, arguments, PretrainRunOptions, called="pretrain()")
    pretraining = PretrainingRun.of(command, method, read.name)
    runs = _execute(command, pretraining.task, progress, pretraining.check_target)
    if ranks_from_environment(command.run.sequence_parallel).first:
        for run in runs:
            pretraining.publish(run.record)
    return runs


def _with_backbone(backbone: "BackboneArgument", name: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the name of the backbone, under which a live module is registered."""
    if isinstance(backbone, str | Path):
        return {"backbone": str(backbone), **options}
    called = name or str(getattr(backbone, "__name__", type(backbone).__name__))
    live_modules.register(called, backbone)
    return {"backbone": f"{live_modules.PREFIX}{called}", **options}


def _execute(
    command: Command, task: "Task", progress: bool, check_run: "Callable[[PlannedRun], None] | None" = None
) -> RunSet:
    from transfer.core.errors import Stopped
    from transfer.evaluation.evaluate import evaluate_each
    from transfer.run import checked_inputs

    if command.launch.launcher != "local":
        raise UsageError(f"launcher={command.launch.launcher!r}: Python runs here; the command line submits jobs")
    commands = checked_inputs(command, task, say=progress)
    try:
        evaluation = evaluate_each(commands, task, check_run, progress=progress)
    except Stopped:
        raise KeyboardInterrupt("stopped by a signal; the state is saved, and the same call resumes from it") from None
    runs = runs_of(evaluation.records, command.run.out)
    if evaluation.failures:
        raise RunsFailed(evaluation.failures, runs)
    return runs
