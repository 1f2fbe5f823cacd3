"""`evaluate` and `pretrain` for Python, and the parts of which users make tasks, methods and scripts.

A name of `_PARTS` is imported from its module when it is first asked for, so importing this imports no torch.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transfer.cli.command import Command, read_command
from transfer.cli.layers import keyword_arguments
from transfer.cli.options import BackboneOptions, LaunchOptions, PretrainRunOptions, RunOptions
from transfer.cli.recipe import Recipe, method_of, pretraining_recipe, task_recipe
from transfer.core import live_modules
from transfer.core.errors import Stopped, UsageError, UserError
from transfer.core.lazy import lazy_names
from transfer.core.machine_errors import missing_packages_named
from transfer.records.store import Store, StoredRun
from transfer.runs import RunSet
from transfer.task import Metric, Task, load_task

if TYPE_CHECKING:
    from torch import nn

    from backbones.pretrain.accuracy import image_outcomes
    from backbones.pretrain.method import PretrainingMethod, PretrainOptions, initial_backbone
    from backbones.trained_weights import export_backbone
    from tasks.labelled_images import Classification, FrozenOptions, frozen_backbone
    from transfer.data.loading.augment import eval_transform
    from transfer.data.loading.loader import shuffled_batches
    from transfer.data.splits.dataset import SplitDataset
    from transfer.engine.extract import compute_rows, extract
    from transfer.engine.learner import Learner, feature_spread
    from transfer.engine.loop import fit
    from transfer.engine.optim import parameter_groups
    from transfer.engine.outcome import Signs
    from transfer.evaluation.planned_run import RunFailed
    from transfer.evaluation.users_metrics import metric

    BackboneArgument = str | Path | nn.Module | Callable[[], nn.Module]


_PARTS = {
    "backbones.pretrain.accuracy": ("image_outcomes",),
    "backbones.pretrain.method": ("PretrainingMethod", "PretrainOptions", "initial_backbone"),
    "backbones.trained_weights": ("export_backbone",),
    "tasks.labelled_images": ("Classification", "FrozenOptions", "frozen_backbone"),
    "transfer.data.loading.augment": ("eval_transform",),
    "transfer.data.loading.loader": ("shuffled_batches",),
    "transfer.data.splits.dataset": ("SplitDataset",),
    "transfer.engine.extract": ("compute_rows", "extract"),
    "transfer.engine.learner": ("Learner", "feature_spread"),
    "transfer.engine.loop": ("fit",),
    "transfer.engine.optim": ("parameter_groups",),
    "transfer.engine.outcome": ("Signs",),
    "transfer.evaluation.users_metrics": ("metric",),
}
"""Module -> its parts that users import."""
__all__ = [
    "Classification", "FrozenOptions", "Learner", "Metric", "PretrainOptions", "PretrainingMethod",
    "Signs", "SplitDataset", "Task", "compute_rows", "eval_transform", "evaluate",
    "export_backbone", "extract", "feature_spread", "fit", "frozen_backbone", "image_outcomes",
    "initial_backbone", "metric", "parameter_groups", "pretrain", "shuffled_batches",
]  # fmt: skip


__getattr__ = lazy_names(__name__, _PARTS)


def __dir__() -> list[str]:
    return __all__


@missing_packages_named()
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
    recipe = task_recipe(task)
    loaded = load_task(recipe.name)
    command = _command("evaluate", recipe, loaded, _with_backbone(backbone, name, options), RunOptions)
    return _execute(command, loaded, progress)


@missing_packages_named()
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
    from transfer.evaluation.weights_export import pretraining_task, publish_export

    read = pretraining_recipe(str(recipe))
    method = load_task(method_of(read))
    options = _with_backbone(backbone, name, options) | ({"name": name} if name else {})
    command = _command("pretrain", read, method, options, PretrainRunOptions)
    runs = _execute(command, pretraining_task(command, method, read.name), progress)
    if ranks_from_environment(command.run.sequence_parallel).first:
        for run in runs:
            publish_export(run.record, command.run, method.options)
    return runs


def _with_backbone(backbone: "BackboneArgument", name: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the name of the backbone, under which a live module is registered."""
    if isinstance(backbone, str | Path):
        return {"backbone": str(backbone), **options}
    return {"backbone": live_modules.register_module(backbone, name), **options}


def _command(function: str, recipe: Recipe, task: Task, options: dict[str, Any], run: type[RunOptions]) -> Command:
    groups = (run, BackboneOptions, task.options, LaunchOptions)
    arguments = keyword_arguments(function, options, groups)
    return read_command(recipe, task.options, arguments, run, called=f"{function}()")


def _execute(command: Command, task: Task, progress: bool) -> RunSet:
    from transfer.evaluation.evaluator import evaluate_each
    from transfer.run import commands_with_inputs

    if command.launch.launcher != "local":
        raise UsageError(f"launcher={command.launch.launcher!r}: Python runs here; the command line submits jobs")
    commands = commands_with_inputs(command, task, say=progress)
    try:
        evaluation = evaluate_each(commands, task, progress=progress)
    except Stopped:
        raise KeyboardInterrupt("stopped by a signal; the state is saved, and the same call resumes from it") from None
    store = Store(command.run.out)
    made = (StoredRun(store.folder(record.run_id), record) for record in evaluation.records)
    runs = RunSet.of(made, store.runs()[0])
    if evaluation.failures:
        raise RunsFailed(evaluation.failures, runs)
    return runs


class RunsFailed(UserError):
    """Some runs ended without a record. The same call tries them again and reuses the others.

    Attributes:
        failures: the id of each failed run with its error, whose traceback is kept.
        runs: the runs of the call that have a record.
    """

    def __init__(self, failures: "Sequence[RunFailed]", runs: RunSet) -> None:
        self.failures, self.runs = list(failures), runs
        lines = [f"{failure.run_id}: {failure.error}" for failure in failures]
        super().__init__("\n".join(lines))
