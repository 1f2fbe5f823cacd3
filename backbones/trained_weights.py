"""What a task's training leaves in the run's folder `export`: the backbone in timm's format, and the head beside it.

`model.safetensors` and `config.json` are the backbone, `head.safetensors` all else that was trained (neck, detector,
classifier) under the names of the learner, and `export.json` says what they are.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.spec import BackboneSpec
from backbones.weights.export import export
from backbones.weights.locate import head_digest, sha256
from transfer.core.errors import MissingInput, Replaced, UserError, shortened, unusable
from transfer.core.exports import EXPORT, EXPORT_FACTS, HEAD, PRETRAIN, WEIGHTS, export_folder, weights_facts
from transfer.core.files import writing
from transfer.engine.context import Context


def export_backbone(
    backbone: Backbone,
    context: Context,
    facts_file: str = PRETRAIN,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    head: Mapping[str, Tensor] | None = None,
    trained: bool = True,
    **about: Any,
) -> None:
    """Write a trained backbone into the run's folder, complete or not at all, for tasks and users to load.

    Nothing is written with `--save-weights none`, whatever the task, or of a failed training.

    Args:
        facts_file: the file beside the weights that says where they come from: the run, `about`, outcome and cost.
        tensors: the backbone's tensors, by default its state dict.
        head: what else was trained, for a file of its own.
        trained: whether the run made the backbone's weights, so that the record names them.
    """
    if context.folder is None or not context.ranks.first or not context.save_weights:
        return
    if context.outcome.training_failed:
        return
    described = {**context.about, **about, "outcome": asdict(context.outcome), "cost": context.cost.summary()}
    scored = context.about.get("preprocessing")
    with writing(folder := context.folder / EXPORT):
        export(backbone, folder, {facts_file: described}, scored=scored, tensors=tensors, head=head)
    if trained:
        context.exported = f"sha256:{sha256(folder / WEIGHTS)}"


def export_trained(learner: nn.Module, backbone: Backbone, context: Context, **about: Any) -> None:
    """Write backbone and head, see `export_backbone`.

    Args:
        learner: holds the backbone at any depth.
        about: what `export.json` says besides, as `classes`.

    Raises:
        UserError: the files cannot be written.
    """
    names = _exported_names(backbone.model)
    model = {exported: value for name, value in backbone.model.state_dict().items() if (exported := names[name])}
    export_backbone(backbone, context, EXPORT_FACTS, tensors=model, head=_head(learner, backbone), **about)


def export_frozen(backbone: Backbone, head: Mapping[str, Tensor], context: Context, **about: Any) -> None:
    """Write a head and the frozen backbone that it was trained on. As `export_trained` otherwise.

    The record names no weights that the run made, since the backbone's are others'.
    """
    export_backbone(backbone, context, EXPORT_FACTS, head=head, trained=False, **about)


def load_head(learner: nn.Module, backbone: Backbone, context: Context) -> None:
    """Load what a run trained on top of the backbone into a learner of the same task, beside the backbone's weights.

    A note says if there is no head beside the weights, and the learner stays as it is.

    Args:
        learner: holds the backbone, which has its weights already.

    Raises:
        UserError: the head is of another task, or of other options.
    """
    head = read_head(backbone.spec.weights, context.head_digest)
    if not head:
        context.note(f"nothing is trained, and the weights {backbone.spec.weights} have no saved task head")
        return
    if trained_on := weights_facts(backbone.spec.weights).get("dataset", {}).get("name"):
        context.details["trained_on"] = trained_on
    wanted = _head(learner, backbone)
    other_names = sorted(wanted.keys() ^ head.keys())
    if differing := other_names or [name for name in wanted if wanted[name].shape != head[name].shape]:
        fault = f"is of another task or of other options; {shortened(differing, 3)} differ"
        raise UserError(f"{backbone.spec.weights}: the head beside the weights {fault}")
    learner.load_state_dict(dict(head), strict=False)


def check_head(spec: BackboneSpec, task: str) -> None:
    """Raise MissingInput if the weights of a backbone have no saved task head, which evaluation needs."""
    if not head_digest(spec.weights):
        fix = f"set --weights to a run of {task} (its id or its folder), or train"
        raise MissingInput(f"--epochs 0: the weights {spec.weights} have no saved task head; {fix}")


def read_head(weights: str, expected: str = "") -> dict[str, Tensor]:
    """Return the head beside weights of an export, by the learner's names; empty if there is none.

    Args:
        weights: as a backbone names them.
        expected: the sha256 (hex) that the file must have, where it is known.

    Raises:
        UserError: the file is damaged, or was replaced.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = export_folder(weights)
    if folder is None or not (folder / HEAD).is_file():
        if expected:
            raise Replaced(Path(weights) / HEAD)
        return {}
    with unusable(f"{folder / HEAD}: cannot be read", SafetensorError, OSError):
        content = (folder / HEAD).read_bytes()
        if expected and hashlib.sha256(content).hexdigest() != expected:
            raise Replaced(folder / HEAD)
        return dict(load(content))


def read_frozen_head(
    weights: str, classes: Sequence[str], wanted: Mapping[str, Tensor], context: Context
) -> dict[str, Tensor]:
    """Return a head that `export_frozen` wrote. Raises UserError if its classes, or shapes of `wanted`, are others."""
    if weights_facts(weights).get("classes") != list(classes):
        raise UserError(f"{weights}: the head was trained for other classes than those of the dataset")
    head = read_head(weights, context.head_digest)
    if any(name not in head or head[name].shape != tensor.shape for name, tensor in wanted.items()):
        fix = "use the --n-last-blocks (and --avgpool) of its run"
        raise UserError(f"{weights}: the head was trained on other features; {fix}")
    return head


def _head(learner: nn.Module, backbone: Backbone) -> dict[str, Tensor]:
    """Return the tensors of a learner that no export of its backbone holds, by name."""
    prefix = next(f"{name}." for name, module in learner.named_modules() if module is backbone.model)
    names = _exported_names(backbone.model)
    exported = {f"{prefix}{name}" for name in names if names[name]}
    tensors = {name: value for name, value in learner.state_dict().items() if isinstance(value, Tensor)}
    return {name: value for name, value in tensors.items() if name not in exported}


def _exported_names(model: nn.Module) -> dict[str, str | None]:
    """Return the name under which each tensor of a backbone is exported; None for what a task has put into it.

    A module with `wraps_inner` belongs to a task, all but the module `inner` whose place it took.
    """
    wrappers = [f"{name}." for name, module in model.named_modules() if getattr(module, "wraps_inner", False)]
    names: dict[str, str | None] = {}
    for name in model.state_dict():
        wrapper = next((wrapper for wrapper in wrappers if name.startswith(wrapper)), None)
        names[name] = name
        if wrapper is not None:
            rest = name.removeprefix(wrapper)
            names[name] = wrapper + rest.removeprefix("inner.") if rest.startswith("inner.") else None
    return names
