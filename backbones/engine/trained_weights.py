"""What a task's training leaves in the run's folder `export`: the backbone in timm's format, and the head beside it.

`model.safetensors` and `config.json` are the backbone, `head.safetensors` all else that was trained (neck, detector,
classifier) under the names of the learner, and `export.json` says what they are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.checkpoints.exports import EXPORT, EXPORT_FACTS, HEAD, WEIGHTS, pretraining_facts
from backbones.engine.context import Context
from backbones.errors import MissingInput, UserError

LEARNER = "learner.safetensors"
"""The file of all tensors in runs of earlier versions, in the run's folder."""
_PREFIX, _RENAMED = "backbone_prefix", "renamed"
"""Entries of `export.json`: what stands before the names of the backbone's tensors in the learner, and exported name ->
name in the learner's backbone where a task has wrapped a module of it."""


def export_trained(learner: nn.Module, backbone: Backbone, context: Context, **about: Any) -> None:
    """Write backbone and head, complete or not at all, unless the run saves no weights (`--save-weights none`).

    Args:
        learner: holds the backbone at any depth.
        about: what `export.json` says besides, as `classes`.

    Raises:
        UserError: the files cannot be written.
    """
    if not context.save_weights:
        return
    prefix = next(f"{name}." for name, module in learner.named_modules() if module is backbone.model)
    names = _exported_names(backbone.model)
    model = {exported: value for name, value in backbone.model.state_dict().items() if (exported := names[name])}
    head = {
        name: value
        for name, value in learner.state_dict().items()
        if isinstance(value, Tensor) and not (name.startswith(prefix) and names[name.removeprefix(prefix)])
    }
    renamed = {exported: name for name, exported in names.items() if exported not in (None, name)}
    context.export(backbone, EXPORT_FACTS, tensors=model, head=head, **{_PREFIX: prefix, _RENAMED: renamed}, **about)


def export_head(tensors: Mapping[str, Tensor], context: Context, **about: Any) -> None:
    """Write the head alone, for tasks that train it on a frozen backbone. As `export_trained` otherwise."""
    if context.save_weights:
        context.export_head(tensors, **about)


def load_trained(run: Path) -> dict[str, Tensor]:
    """Return the tensors of what a run trained, under the names of its learner.

    Args:
        run: the run's folder.

    Raises:
        MissingInput: the run left no weights, or they were taken away.
        UserError: a file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = run / EXPORT
    try:
        if (run / LEARNER).is_file():
            return dict(load_file(run / LEARNER))
        if not (folder / HEAD).is_file():
            raise MissingInput(
                f"the run's weights: there is no {folder / HEAD} here (runs of --save-weights none leave none)"
            )
        facts = pretraining_facts(folder)
        prefix, renamed = facts.get(_PREFIX), facts.get(_RENAMED, {})
        model = load_file(folder / WEIGHTS) if prefix is not None else {}
        named = {f"{prefix}{renamed.get(name, name)}": value for name, value in model.items()}
        return named | dict(load_file(folder / HEAD))
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder}: the run's weights cannot be read ({error})") from None


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
