"""What a command needs before anything runs: weights, data, a place to write. All that is missing is said at once."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backbones.archs import ARCHITECTURE_FIELDS
from backbones.checkpoints.exports import pretraining_facts
from backbones.data.spec import resolve_dataset
from backbones.engine.context import Context
from backbones.errors import UserError
from backbones.spec import LEFT_TO_RECIPES, BackboneSpec
from backbones.weights import Located, changed_parts, find_weights
from tasks.task import Task
from transfer.cli.command import Command
from transfer.records.store import Store


@dataclass
class ResolvedInputs:
    """What was found: the backbone, what is known of its weights, the opened data sets and the words for them."""

    spec: BackboneSpec
    weights_id: str = "random"
    origin: dict[str, Any] = field(default_factory=dict)
    """See `Record.origin`."""
    datasets: list[tuple[str, Any]] = field(default_factory=list)


def find_all(command: Command, task: Task, context: Context, store: Store) -> ResolvedInputs:
    """Looks for everything a command needs.

    Raises:
        UserError: with all that is missing, and what mends each.
    """
    run, problems = command.run, _Problems()
    present = ResolvedInputs(command.resolved(task.from_scratch))
    with problems.collected():
        present.spec, present.weights_id, present.origin = _weights(present.spec, command, context)
        _say_what_changes(present.spec, command, context)
        if command.backbone.weights == "config" and not task.from_scratch:
            _say_what_is_passed_over(present.spec, context)
    for words in run.dataset:
        with problems.collected():
            dataset = task.open(
                resolve_dataset(words),
                command.options,
                root=run.data,
                subset=run.subset,
                skip_unreadable=run.skip_unreadable,
            )
            present.datasets.append((words, dataset))
    for _, dataset in present.datasets:
        with problems.collected():
            task.check(present.spec, dataset, command.options, context)
    with problems.collected():
        store.prepare()
    problems.raise_if_any()
    return present


def _weights(spec: BackboneSpec, command: Command, context: Context) -> tuple[BackboneSpec, str, dict[str, Any]]:
    """The backbone with weights that exist, their id and origin. A smoke run may go on with random ones and says so."""
    try:
        located = find_weights(spec)
        return spec, located.weights_id, _say_whose(located, context)
    except UserError:
        if not command.run.smoke or command.backbone.weights != "config":
            raise
        own = Path("weights") / spec.name
        if spec.weights != str(own) and pretraining_facts(own):
            # Those of a smoke run take the place of released ones in smoke runs alone.
            return _weights(command.resolved(from_scratch=False, weights=str(own)), command, context)
        context.note(f"smoke run with random weights: those of {spec.name} ({spec.weights}) are not here")
        return replace(spec, weights="random"), "random", {}


def _say_what_changes(spec: BackboneSpec, command: Command, context: Context) -> None:
    """Of weights put into another model: each part that is not the export's, or not what the backbone's name says."""
    if spec.load != "partial":
        return
    if changed := changed_parts(spec):
        context.note(f"--load partial: {spec.weights} holds another model: {'; '.join(changed)}")
    named = command.resolved(from_scratch=False, weights="random")
    shown = [key for key in ARCHITECTURE_FIELDS if key not in ("init", "train_size", *LEFT_TO_RECIPES)]
    both = {key: (getattr(spec, key), getattr(named, key)) for key in shown}
    if kept := [f"{key} {own}, not {other}" for key, (own, other) in both.items() if own != other]:
        context.note(f"--load partial: kept from {spec.weights}: {'; '.join(kept)}")


def _say_what_is_passed_over(spec: BackboneSpec, context: Context) -> None:
    own = Path("weights") / spec.name
    about = pretraining_facts(own) if spec.weights != str(own) else {}
    if about:
        kind = "a smoke run" if about.get("smoke") else "a training"
        context.note(f"{own} holds weights of {kind} that are not taken by name: --weights {own} takes them")


def _say_whose(located: Located, context: Context) -> dict[str, Any]:
    """Weights of a toy pretraining are marked in every record that they lead to. Returns their origin."""
    about = pretraining_facts(located.folder) if located.folder else {}
    if about:
        context.say(f"weights: {located.folder}, from the run {about.get('run')}")
    origin = origin_of(about)
    marks = ["--smoke"] * bool(origin.get("smoke")) + ["--subset"] * (origin.get("subset") is not None)
    if marks:
        context.note(f"the weights in {located.folder} were pretrained with {' and '.join(marks)}: no real ones")
    return origin


def origin_of(about: dict[str, Any]) -> dict[str, Any]:
    """What marks an export, from its `pretrain.json`, and whatever its run had started from; empty if nothing is known.

    See `Record.origin`.
    """
    if not about:
        return {}
    before = about.get("origin") or {}
    found = {mark: before.get(mark) or about.get(mark) for mark in ("smoke", "dirty", "subset")}
    # what other seeds of it have in common, and its own seed: tables know seeds by them where its record is not at hand
    told = {"training": about.get("protocol"), "seed": about.get("seed")}
    return found | (told if about.get("protocol") else {})


class _Problems:
    def __init__(self) -> None:
        self.errors: list[UserError] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self.errors.append(error)

    def raise_if_any(self) -> None:
        """One error for all; its exit status is 2 when only words were wrong."""
        if self.errors:
            summary = UserError("\n".join(map(str, self.errors)))
            summary.exit_status = min(2, *(error.exit_status for error in self.errors))
            raise summary
