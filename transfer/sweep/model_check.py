"""Parses the commands of a sweep's jobs and builds their models, each once, on the meta device."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from backbones.archs import parse_field
from transfer.cli.layers import layer_values
from transfer.core.errors import errors_naming, errors_together
from transfer.experiments.grid import SweepJob
from transfer.experiments.step import BACKBONE_OPTIONS

if TYPE_CHECKING:
    from backbones.backbone import Backbone
    from backbones.spec import BackboneSpec
    from transfer.cli.command import Command


Overrides = tuple[tuple[str, Any], ...]
DETECT = "detect"
PASSES = 3  # a training step costs one forward pass and a backward pass of twice the operations


def check_options(job: SweepJob, parsed: set[tuple[str, ...]]) -> None:
    """Parse the command of a job. Raises UserError for a wrong option.

    Args:
        job: it is parsed only if it has a value that no job before it had, as parsing takes a tenth of a second.
        parsed: the values so far by step and option, to which those of the job are added.
    """
    values = {(job.step.name, name, repr(value)) for name, value in job.options.items()}
    values |= {(job.step.name, "backbone", job.backbone), (job.step.name, "dataset", job.dataset)}
    if not values <= parsed:
        _command(job)
        parsed |= values


def _command(job: SweepJob) -> "Command":
    """Parse a job's command. Raises UsageError for a wrong option."""
    from transfer.cli.command import read_command
    from transfer.cli.options import PretrainRunOptions, RunOptions

    run = PretrainRunOptions if job.step.kind == "pretrain" else RunOptions
    with errors_naming(f"steps.{job.step.name}"), errors_together():
        return read_command(job.step.source, job.step.option_type, list(job.argv(Path()))[2:], run)


def build_task_model(job: SweepJob, built: set[str]) -> None:
    """Build what the task of a job adds to the backbone, unless `built` has an equal model, and add it to `built`.

    Raises whatever the task raises when it cannot be built.
    """
    from transfer.engine.options import FitOptions
    from transfer.task import Task, load_task

    training = {*BACKBONE_OPTIONS, *(item.name for item in fields(FitOptions))}
    shape = {name: value for name, value in recipe_of(job).items() if name not in training}
    key = json.dumps([job.step.recipe, job.backbone, _overrides(job), shape], default=str)
    if job.step.kind != "run" or key in built:
        return
    built.add(key)
    task = load_task(job.step.recipe)
    if type(task).build is Task.build and not task.function("build"):
        return
    command = _command(job)
    spec = command.resolved(task.from_scratch, weights="random", load="strict")
    command.check_flags(spec)
    command.fit_backbone(spec, task)
    task.check_words(spec, command.options)
    _on_meta(lambda: task.build(spec, command.options), spec)


def _overrides(job: SweepJob) -> Overrides:
    """Return the parts of the backbone that a job's command names, without the weights.

    All exponents other than 1 are treated as one value, because they change neither tensors nor operations.
    """
    overrides = {name: hashable(job.options[name]) for name in sorted(job.options) if name in BACKBONE_OPTIONS}
    alpha = overrides.get("alpha", 1)
    if alpha not in (None, 1):
        overrides["alpha"] = "learned" if parse_field("alpha", alpha) == "learned" else 0.5
    return tuple((name, value) for name, value in overrides.items() if name not in ("weights", "load"))


def operations_at(job: SweepJob, size: Any) -> float:
    """Return the operations of a forward pass of one image through a job's backbone.

    Args:
        size: the image size in pixels, or (height, width).

    Raises whatever the backbone raises when it cannot be built or takes no image of this size.
    """
    return _operations(job.backbone, size, _overrides(job), padded=job.step.recipe == DETECT)


@cache
def _operations(backbone: str, size: Any, overrides: Overrides, *, padded: bool) -> float:
    from backbones.flops import flops

    model = _model(backbone, size, overrides, padded=padded)
    height, width = _sides(size, model.spec, padded=padded)
    operations = _on_meta(lambda: flops(model, (height, width))["total"], model.spec, makes_model=False)
    return float(operations)


@lru_cache(maxsize=256)
def _model(backbone: str, size: Any, overrides: Overrides, *, padded: bool) -> "Backbone":
    """Return a backbone for images of a size, usually on the meta device and so without memory for values."""
    from backbones.backbone import create
    from backbones.spec import resolve

    spec = resolve(backbone, **{**dict(overrides), "weights": "random", "load": "strict"})
    backbone_model: Backbone = _on_meta(lambda: create(spec, img_size=_sides(size, spec, padded=padded)), spec)
    return backbone_model


def _sides(size: Any, spec: "BackboneSpec", *, padded: bool) -> tuple[int, int]:
    """Return the height and width of an image; with `padded`, rounded up as detectors pad images."""
    height, width = size if isinstance(size, tuple) else (size, size)
    step = spec.divisor if padded else 1
    return -(-height // step) * step, -(-width // step) * step


def _on_meta(make: Callable[[], Any], spec: "BackboneSpec", *, makes_model: bool = True) -> Any:
    """Call `make` on the meta device; a user's code that makes its own tensors there is called on the CPU instead.

    Args:
        makes_model: whether it makes a model of ours, whose initial values need not be drawn.
    """
    import torch

    try:
        with torch.device("meta") if spec.files or not makes_model else shapes_only():
            return make()
    except Exception:
        if not spec.files:
            raise
    return make()


def views_of(recipe: dict[str, Any]) -> list[tuple[Any, float]]:
    """Return (image size, number of forward passes that cost the same) for each view of an image in an epoch."""
    if "local_crops" not in recipe:
        return [(side_of(recipe), PASSES)]
    # the student trains on all crops; the teacher sees the two large ones without a backward pass
    return [(recipe["size"], 2 * PASSES + 2), (recipe["local_size"], PASSES * recipe["local_crops"])]


def side_of(recipe: dict[str, Any]) -> Any:
    """Return the image size of a recipe in pixels, or as (height, width)."""
    return hashable(recipe.get("size") or 224)


def recipe_of(job: SweepJob) -> dict[str, Any]:
    """Return the values that a job's command combines: recipe, smoke layer, options."""
    source = job.step.source
    layer = layer_values(source.smoke) if job.options.get("smoke") and source.smoke.is_file() else {}
    base = layer_values(source.base) if source.base else {}
    return {**base, **layer_values(source.path), **layer, **job.options}


def hashable(value: Any) -> Any:
    """Return a list as a tuple, and other values as they are."""
    return tuple(value) if isinstance(value, list) else value


_IN_PLACE = frozenset(
    getattr(Tensor, name)
    for name in ("normal_", "uniform_", "erfinv_", "mul_", "add_", "sub_", "div_", "clamp_", "fill_", "zero_")
)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Within this context modules are made on the meta device, and nothing is computed for their initial values.

    Drawing them takes three quarters of the time in which a ViT is made there, and there are no values to draw.
    """
    with torch.device("meta"), _NoValues():
        yield


class _NoValues(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return a tensor without values itself, in place of what would change them."""
        return args[0] if func in _IN_PLACE and args[0].is_meta else func(*args, **(kwargs or {}))
