"""Checks a command before it runs: first all that needs neither torch nor the content of data, then the rest.

All that is wrong or missing at either time is one error.
"""

from typing import TYPE_CHECKING

from backbones.errors import errors_together, has_kept, kept
from backbones.runtime.files import check_writable
from backbones.spec import BackboneSpec
from backbones.trackers.tracker import check_installed
from tasks.task import Task
from tasks.users_metrics import load_metrics
from transfer.cli.command import Command
from transfer.evaluation.inputs import ResolvedInputs, check_folders, find_backbone, open_datasets

if TYPE_CHECKING:
    from backbones.engine.context import Context


def find_inputs(command: Command, task: Task, spec: BackboneSpec) -> ResolvedInputs:
    """Find the backbone with its weights, and check folders, metrics and tracker. Imports no torch.

    Raises:
        UserError: something is missing; the message lists all of it, and how to fix each.
    """
    out = next(path for path in (command.run.out, *command.run.out.absolute().parents) if path.exists())
    with errors_together(join=True):
        for check in (
            lambda: check_folders(command),
            lambda: load_metrics(command.run.metric),
            lambda: check_installed(command.run.tracker),
            lambda: check_writable(out, "--out"),
        ):
            with kept():
                check()
        if has_kept() and str(spec.weights).startswith("timm"):
            return ResolvedInputs(spec)  # looking for them imports timm, and torch with it
        return find_backbone(command, task)


def check_inputs(command: Command, task: Task, context: "Context", inputs: ResolvedInputs) -> None:
    """Open the data of a command and check that the task can use it. Raises UserError with all that is wrong."""
    inputs.messages.deliver(context.say, context.note)
    _check_model(inputs.spec, inputs.weights_id, command, task)
    with errors_together():
        open_datasets(inputs, command, task)
        inputs.messages.deliver(context.say, context.note)
        for _, dataset in inputs.datasets:
            with kept():
                task.check(inputs.spec, dataset, command.fit_data(task, dataset).options, context)


def _check_model(spec: BackboneSpec, weights_id: str, command: Command, task: Task) -> None:
    """Check what needs no data, before data is opened: that the weights fit, and that patterns of `--trainable` match.

    Raises:
        UserError: the weights are of another model.
        UsageError: a pattern matches no parameter that trains.
    """
    from backbones.backbone import check_weights_fit
    from backbones.engine.optim import freeze_others

    if weights_id.startswith(("sha256:", "timm:")):
        check_weights_fit(spec, task.built_size(command.options))
    patterns = getattr(command.options, "trainable", ("*",))
    if patterns != ("*",) and (learner := task.untrained_learner(spec, command.options)) is not None:
        freeze_others(learner, patterns)
