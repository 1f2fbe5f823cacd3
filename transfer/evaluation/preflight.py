"""Checks a command before it runs: inputs, model, task, tracker, folders; all that is missing is one error."""

from backbones.backbone import check_weights_fit
from backbones.engine.context import Context
from backbones.engine.optim import freeze_others
from backbones.runtime.files import check_writable
from backbones.spec import BackboneSpec
from backbones.trackers.tracking import check_installed
from tasks.task import Task
from tasks.users_metrics import load_metrics
from transfer.cli.command import Command
from transfer.evaluation.inputs import ResolvedInputs, find_backbone, open_datasets
from transfer.evaluation.problems import Problems
from transfer.records.store import Store


def resolve_inputs(
    command: Command, task: Task, context: Context, store: Store, found: ResolvedInputs | None = None
) -> ResolvedInputs:
    """Find everything that a command needs.

    Args:
        found: the inputs, if they were found before.

    Raises:
        UserError: something is missing; the message lists all of it, and how to fix each.
    """
    problems = Problems()
    inputs = found or find_backbone(command, task, problems)
    inputs.messages.deliver(context.say, context.note)
    _check_model(inputs.spec, inputs.weights_id, command, task)
    if found is None:
        open_datasets(inputs, command, task, problems)
        inputs.messages.deliver(context.say, context.note)
    for _, dataset in inputs.datasets:
        with problems.collected():
            task.check(inputs.spec, dataset, command.fit_data(task, dataset).options, context)
    with problems.collected():
        load_metrics(command.run.metric)
    with problems.collected():
        check_installed(command.run.tracker)
    with problems.collected():
        check_writable(store.root, "--out")
    problems.raise_if_any()
    return inputs


def _check_model(spec: BackboneSpec, weights_id: str, command: Command, task: Task) -> None:
    """Check what needs no data, before data is opened: that the weights fit, and that patterns of `--trainable` match.

    Raises:
        UserError: the weights are of another model.
        UsageError: a pattern matches no parameter that trains.
    """
    if weights_id.startswith(("sha256:", "timm:")):
        check_weights_fit(spec, task.built_size(command.options))
    patterns = getattr(command.options, "trainable", ("*",))
    if patterns != ("*",) and (learner := task.untrained_learner(spec, command.options)) is not None:
        freeze_others(learner, patterns)
