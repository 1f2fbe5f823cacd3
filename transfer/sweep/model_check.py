"""Whether the cells of a sweep can be built: every model once, on the meta device, where nothing is computed."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.errors import UsageError, UserError
from backbones.settings import read_yaml
from backbones.spec_values import parse_field
from transfer.sweep.definition.grid import SweepJob
from transfer.sweep.definition.step import BACKBONE_OPTIONS

if TYPE_CHECKING:
    from backbones.backbone import Backbone
    from backbones.spec import BackboneSpec

Overrides = tuple[tuple[str, Any], ...]
DETECT = "detect"
AROUND = ("detector", "pyramid", "taps", "window", "window_padding", "global_blocks", "relative", "size", "checkpoint")
"""What its command says of the model that stands around a backbone"""
PASSES = 3  # forward once, backward twice as much


@dataclass
class Built:
    """What came of building the cells of a sweep."""

    models: int
    seconds: float
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by the name of the cell"""

    def raise_if_any(self) -> None:
        """Names each cell that cannot be built. Raises UsageError."""
        if self.failed:
            lines = [f"{name}: {reason}" for name, reason in self.failed.items()]
            raise UsageError("\n".join([f"{len(lines)} cells cannot be built:", *lines]))


def build_all(cells: Sequence[SweepJob]) -> Built:
    """Builds the model of every cell, that of several cells once; an image goes through those with a user's part."""
    begin, known = time.perf_counter(), dict[str, str]()
    built = Built(0, 0.0)
    for cell in cells:
        key = _model_of(cell)
        if key not in known:
            known[key] = _reason(cell)
        if known[key]:
            built.failed[cell.name] = known[key]
    built.models, built.seconds = len(known), time.perf_counter() - begin
    return built


def _reason(cell: SweepJob) -> str:
    """Why a cell's model cannot be built; empty where it can."""
    try:
        if cell.step.recipe != DETECT:
            for size, _ in views_of(recipe_of(cell)):
                if _model(cell.backbone, size, _overrides(cell), padded=False).spec.files:
                    operations_at(cell, size)
        if cell.step.kind == "run":
            _build_around(cell)
    except UserError as error:
        return str(error)
    except Exception as error:  # of a user's part
        return f"a part of {cell.backbone} raised {type(error).__name__}: {error}"
    return ""


def _build_around(cell: SweepJob) -> None:
    """What a task builds around the backbone, by the options that the cell's command has."""
    from tasks.task import Task, load_task
    from transfer.cli.command import read_command

    task = load_task(cell.step.recipe)
    if type(task).build is Task.build:
        return
    command = read_command(cell.step.source, task.options, list(cell.words(Path()))[2:])
    spec = command.resolved(task.from_scratch, weights="random", load="strict")
    command.check_flags(spec)
    task.check_words(spec, command.options)
    _on_meta(lambda: task.build(spec, command.options), spec)


def _model_of(cell: SweepJob) -> str:
    """Equal for cells that share a model: what they say of how it is trained does not count."""
    recipe = recipe_of(cell)
    around = [recipe.get(name) for name in AROUND] if cell.step.recipe == DETECT else views_of(recipe)
    return json.dumps([cell.step.recipe == DETECT, cell.backbone, _overrides(cell), around], default=str)


def _overrides(cell: SweepJob) -> Overrides:
    """Parts of the backbone as a cell's command names them, without the weights.

    An exponent other than 1 stands for all of them: it has no tensors and takes no operations.
    """
    named = {name: hashable(cell.options[name]) for name in sorted(cell.options) if name in BACKBONE_OPTIONS}
    alpha = named.get("alpha", 1)
    if alpha not in (None, 1):
        named["alpha"] = "learned" if parse_field("alpha", alpha) == "learned" else 0.5
    return tuple((name, value) for name, value in named.items() if name not in ("weights", "load"))


def operations_at(cell: SweepJob, size: Any) -> float:
    """Operations of a forward pass of one image of a size, in pixels or (height, width), through a cell's backbone.

    Raises what cannot be built, or takes no image of this size.
    """
    return _operations(cell.backbone, size, _overrides(cell), padded=cell.step.recipe == DETECT)


@cache
def _operations(backbone: str, size: Any, overrides: Overrides, *, padded: bool) -> float:
    from backbones.engine.flops import flops

    model = _model(backbone, size, overrides, padded=padded)
    height, width = _sides(size, model.spec, padded=padded)
    return float(_on_meta(lambda: flops(model, (height, width))["total"], model.spec))


@lru_cache(maxsize=256)
def _model(backbone: str, size: Any, overrides: Overrides, *, padded: bool) -> "Backbone":
    """A backbone for images of a size, as a rule without values and so without memory."""
    from backbones.backbone import create
    from backbones.spec import resolve

    spec = resolve(backbone, **{**dict(overrides), "weights": "random", "load": "strict"})
    found: Backbone = _on_meta(lambda: create(spec, img_size=_sides(size, spec, padded=padded)), spec)
    return found


def _sides(size: Any, spec: "BackboneSpec", *, padded: bool) -> tuple[int, int]:
    """Height and width of an image, padded as detectors do it."""
    height, width = size if isinstance(size, tuple) else (size, size)
    step = spec.divisor if padded else 1
    return -(-height // step) * step, -(-width // step) * step


def _on_meta(make: Callable[[], Any], spec: "BackboneSpec") -> Any:
    """What is made where nothing is computed; a user's part may make tensors of its own on the CPU."""
    import torch

    try:
        with torch.device("meta"):
            return make()
    except Exception:
        if not spec.files:
            raise
    return make()


def views_of(recipe: dict[str, Any]) -> list[tuple[Any, float]]:
    """(image size, forward passes' worth of operations) for one image of one epoch."""
    if "local_crops" not in recipe:
        return [(side_of(recipe), PASSES)]
    # the student sees all crops, the teacher, without a backward pass, the two large ones
    return [(recipe["size"], 2 * PASSES + 2), (recipe["local_size"], PASSES * recipe["local_crops"])]


def side_of(recipe: dict[str, Any]) -> Any:
    """Pixels, or (height, width)."""
    return hashable(recipe.get("size") or 224)


def recipe_of(cell: SweepJob) -> dict[str, Any]:
    """The values that a cell's command stacks: recipe, smoke layer, options."""
    source = cell.step.source
    layer = _read(source.smoke) if cell.options.get("smoke") and source.smoke.is_file() else {}
    return {**_read(source.path), **layer, **cell.options}


def _read(path: Path) -> dict[str, Any]:
    """A YAML that many cells share, read once for as long as it stays the same."""
    found = path.resolve()
    return _content(found, found.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _content(path: Path, time: int) -> dict[str, Any]:
    return read_yaml(path)


def hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
