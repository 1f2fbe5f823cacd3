"""Checks a command before it runs: first all that needs neither torch nor the content of data, then the rest.

All that is wrong or missing at either time is one error.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.archs import ARCHITECTURE_FIELDS
from backbones.spec import LEFT_TO_RECIPES, BackboneSpec, override
from backbones.weights.locate import changed_parts, find_weights
from transfer.cli.command import Command
from transfer.core.errors import MissingInput, UsageError, attempt, errors_together, has_kept, kept
from transfer.core.exports import export_folder, modified_files, pretraining_facts
from transfer.core.files import check_writable
from transfer.data.layouts import FORMATS
from transfer.data.spec import DatasetSpec, candidate_folders, data_folder, find_root, resolve_dataset
from transfer.data.splits.manifest import named_files
from transfer.engine.trackers import check_installed
from transfer.evaluation.users_metrics import load_metrics
from transfer.records.baselines import check_baselines
from transfer.task import Task

if TYPE_CHECKING:
    from transfer.engine.context import Context


@dataclass
class ResolvedInputs:
    """The resolved backbone with the id and origin of its weights, and the opened datasets."""

    spec: BackboneSpec
    weights_id: str = "random"
    origin: dict[str, Any] = field(default_factory=dict)
    """See `Record.origin`."""
    datasets: list[tuple[tuple[str, ...], Any]] = field(default_factory=list)
    """Each with the names that the command has for it; with `--joint` one dataset has them all."""
    lines: list[tuple[str, bool]] = field(default_factory=list)
    """Lines for the user, kept until somebody prints them, each with whether it belongs into the record, too."""

    def note(self, text: str, *, recorded: bool = True) -> None:
        """Keep a line for the user."""
        self.lines.append((text, recorded))

    def deliver(self, context: "Context") -> None:
        """Hand the lines on, once."""
        for text, recorded in self.lines:
            (context.note if recorded else context.say)(text)
        self.lines.clear()


def find_backbone(command: Command, task: Task) -> ResolvedInputs:
    """Resolve the backbone and find its weights. Raises UserError; of missing weights it is `kept`."""
    inputs = ResolvedInputs(asked := command.resolved(task.from_scratch))
    with kept():
        _find_weights(inputs, command)
        _note_changed_parts(inputs, command)
        unnamed = command.backbone.weights == ("config",) and not task.from_scratch
        if unnamed and asked.weights == inputs.weights_id == "random" and asked.kind != "user":
            state = "none given, the backbone starts from random weights"
            trained = "--weights FILE, --backbone weights/NAME, or a backbone of `python -m transfer --list weights`"
            inputs.note(f"weights: {state}; for trained ones use {trained}")
    return inputs


def check_dataset_names(command: Command, task: Task) -> None:
    """Check the names of the datasets of a command, and that the task takes their formats. Raises UserError, `kept`."""
    with kept():
        if command.joined and len(command.run.dataset) < 2:
            why = "a sweep trains on each alone"
            raise UsageError(f"--joint: set several names after --dataset, or use --no-joint; {why}")
    for argument in (*command.run.dataset, *getattr(command.options, "test_dataset", ())):
        with kept():
            task.check_kind(resolve_dataset(argument))


def check_folders(command: Command) -> None:
    """Check that each dataset of a command may be there, without reading it. Raises UserError, `kept`."""
    for argument in command.run.dataset:
        with kept():
            _check_folder(resolve_dataset(argument), command.run.data)


def _check_folder(spec: DatasetSpec, data: Path | None) -> None:
    """Raise MissingInput if a dataset is nowhere. Where its keys decide the layout, reading it tells the rest."""
    if spec.format in ("hf", "torchreid") or "generator" in spec.options:
        return
    if spec.reader or spec.options or not FORMATS[spec.format].trees:
        roots, below = candidate_folders(spec, data, itself=False)
        if any(any(path.glob("*")) for path in (*roots, *below)):
            return
        if "hub" in spec.options:
            from transfer.data.classification import READERS
            from transfer.data.formats.parquet import cached_revisions

            if not cached_revisions(spec.options["hub"]["id"]):
                READERS[spec.format](spec, data)  # which says what is missing
            return
        base = data_folder(data)
        files = [file for key in ("train_annotations", "val_annotations") if (file := spec.options.get(key))]
        if base and any(base.glob("*")) and (not files or any((base / file).exists() for file in files)):
            return
    find_root(spec, data)


def open_datasets(inputs: ResolvedInputs, command: Command, task: Task) -> None:
    """Open the datasets of a command into `inputs`. Raises UserError with all that is wrong."""
    with errors_together(join=True):
        named_files.cache_clear()  # nothing is remembered from one command to the next
        opened: list[tuple[tuple[str, ...], Any]] = []
        for argument in command.run.dataset:
            with kept():
                spec = resolve_dataset(argument)
                dataset = open_dataset(spec, command, task)
                if inputs.spec.in_chans != 3 and hasattr(dataset, "read_channels"):  # a user's task may have none
                    dataset.read_channels(inputs.spec.in_chans)
                if spec.recognised:
                    inputs.note(f"{argument}: {spec.reading}")
                opened.append(((argument,), dataset))
    if command.joined:
        opened = [(command.run.dataset, task.join([dataset for _, dataset in opened]))]
    inputs.datasets += opened


def open_dataset(spec: DatasetSpec, command: Command, task: Task) -> Any:
    """Open a dataset as a command asks for it. Raises UserError."""
    run = command.run
    return task.open(spec, command.options, root=run.data, subset=run.subset, drop_corrupt=run.drop_corrupt)


def _find_weights(inputs: ResolvedInputs, command: Command) -> None:
    """Find the weights of the backbone, their id and origin; a smoke run may use random ones, with a note."""
    if command.run.allow_dropped and inputs.spec.load != "partial":
        raise UsageError("--allow-dropped has no effect without --load partial")
    allowed = command.run.allow_dropped or inputs.spec.allow_dropped
    inputs.spec = spec = replace(inputs.spec, allow_modified=command.run.allow_modified, allow_dropped=allowed)
    try:
        located = find_weights(spec)
        inputs.weights_id = located.weights_id
        if located.path is not None:
            _note_origin(inputs, located.path)
    except (MissingInput, UsageError):
        # weights that are here and cannot be used, as damaged ones, are not missing
        if not command.run.smoke or command.backbone.weights != ("config",) or export_folder(spec.weights):
            raise
        own_weights = Path("weights") / spec.name
        if spec.weights != str(own_weights) and pretraining_facts(own_weights):
            # Weights of a smoke run replace released ones in smoke runs only.
            inputs.spec = command.resolved(from_scratch=False, weights=str(own_weights))
            _find_weights(inputs, command)
            return
        inputs.note(f"smoke run with random weights: those of {spec.name} ({spec.weights}) are not available locally")
        inputs.spec = override(spec, weights="random")


def _note_changed_parts(inputs: ResolvedInputs, command: Command) -> None:
    """Note, with `--load partial`, the parts in which the model differs from the export or from the named backbone."""
    spec = inputs.spec
    if spec.load != "partial":
        return
    if changed := changed_parts(spec):
        inputs.note(f"--load partial: {spec.weights} contains a different architecture: {'; '.join(changed)}")
    configured = command.resolved(from_scratch=False, weights="random")
    names = [key for key in ARCHITECTURE_FIELDS if key not in ("init", "train_size", *LEFT_TO_RECIPES)]
    values = {name: (getattr(spec, name), getattr(configured, name)) for name in names}
    if parts := [f"{name} {value}, not {other}" for name, (value, other) in values.items() if value != other]:
        inputs.note(f"--load partial: kept from {spec.weights}: {'; '.join(parts)}")


def _note_origin(inputs: ResolvedInputs, weights: Path) -> None:
    """Note weights of a pretraining with `--smoke` or `--subset`, and the origin that records are marked with."""
    folder = weights.parent
    facts = pretraining_facts(folder)
    if facts:
        inputs.note(f"weights: {folder}, from the run {facts.get('run')}", recorded=False)
    origin = export_origin(facts)
    if modified := modified_files(folder, weights.name):
        # they are not the weights of that training, nor of one of its seeds
        origin = {name: value for name, value in origin.items() if name not in ("training", "seed")}
        origin["modified"] = True
        inputs.note(f"{folder}: {', '.join(modified)} changed since the export was written")
    marks = ["--smoke"] if origin.get("smoke") else []
    if origin.get("subset") is not None:
        marks.append("--subset")
    if marks:
        inputs.note(f"the weights in {folder} were trained with {' and '.join(marks)}, so results are not valid")
    inputs.origin = origin


def export_origin(facts: dict[str, Any]) -> dict[str, Any]:
    """Return an export's marks, its own and inherited ones, from `pretrain.json`; see `Record.origin`.

    Args:
        facts: the content of `pretrain.json`; the result is empty when it is empty.
    """
    if not facts:
        return {}
    before = facts.get("origin") or {}
    marks = {mark: before.get(mark) or facts.get(mark) for mark in ("smoke", "dirty", "subset")}
    if before.get("modified"):
        marks["modified"] = True
    # by these, tables recognize the seeds of a pretraining without its record
    training = {"training": facts.get("protocol"), "seed": facts.get("seed")}
    return marks | (training if facts.get("protocol") else {})


def find_inputs(command: Command, task: Task, spec: BackboneSpec) -> ResolvedInputs:
    """Find the backbone with its weights, and check folders, metrics and tracker. Imports no torch.

    Raises:
        UserError: something is missing; the message lists all of it, and how to fix each.
    """
    out = next(path for path in (command.run.out, *command.run.out.absolute().parents) if path.exists())
    with errors_together(join=True):
        check_folders(command)
        attempt(load_metrics, command.run.metric)
        attempt(check_baselines, command.run.baselines)
        attempt(check_installed, command.run.tracker)
        attempt(check_writable, out, "--out")
        if has_kept() and str(spec.weights).startswith("timm"):
            return ResolvedInputs(spec)  # looking for them imports timm, and torch with it
        return find_backbone(command, task)


def check_inputs(command: Command, task: Task, context: "Context", inputs: ResolvedInputs) -> None:
    """Open the data of a command and check that the task can use it. Raises UserError with all that is wrong."""
    inputs.deliver(context)
    _check_model(inputs, command, task, context)
    with errors_together():
        open_datasets(inputs, command, task)
        inputs.deliver(context)
        for _, dataset in inputs.datasets:
            with kept():
                task.check(inputs.spec, dataset, command.fit_data(task, inputs.spec, dataset).options, context)


def check_weights(inputs: ResolvedInputs, command: Command, task: Task) -> None:
    """Load weights that were found, once. Raises UserError if they are damaged, or of another model."""
    from backbones.backbone import check_weights_fit

    if inputs.weights_id.startswith(("sha256:", "timm:")):
        check_weights_fit(inputs.spec, task.built_size(command.options))


def _check_model(inputs: ResolvedInputs, command: Command, task: Task, context: "Context") -> None:
    """Check what needs no data, before data is opened: that the weights fit, that patterns of `--trainable` match, and
    that the blocks of `--watch` are known.

    Raises:
        UserError: the weights are of another model.
        UsageError: a pattern matches no parameter that trains, or the blocks are not known.
    """
    from transfer.engine.optim import freeze_others

    check_weights(inputs, command, task)
    patterns, watch = getattr(command.options, "trainable", ("*",)), context.watch
    if (watch or patterns != ("*",)) and (learner := task.untrained_learner(inputs.spec, command.options)) is not None:
        freeze_others(learner, patterns)
        if watch:
            watch(learner)
