"""What a sweep will cost before it starts: operations by cell, and hours at a stated speed."""

import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.data.spec import resolve_dataset
from backbones.errors import UserError
from backbones.settings import read_yaml
from transfer.grid import Cell, receipt
from transfer.launchers import Work, python_words
from transfer.sweep_file import SweepFile
from transfer.sweep_steps import BACKBONE_OPTIONS

if TYPE_CHECKING:
    from transfer.stability import Searches

UTILISATION = 0.3  # of what a large matrix product reaches
PASSES = 3  # forward once, backward twice as much


def plan(
    sweep: SweepFile,
    cells: list[Cell],
    out: Path,
    extra: tuple[str, ...],
    gpus: int | None,
    speed: float | None,
    searches: "Searches | None",
) -> str:
    """The cells of a sweep with their commands and predicted cost, as text.

    Args:
        extra: words that every command gets besides. gpus: of a cell, in place of what its step says.
        speed: TFLOP/s that a device sustains; None: measured here.
    """
    import pandas as pd

    from transfer.tables import markdown

    how = "--speed" if speed else f"{UTILISATION:.0%} of a matrix product on this machine, measured now"
    speed = speed or _sustained()
    found = [_predicted(cell) for cell in cells]
    table = pd.DataFrame(
        {
            "cell": cell.name,
            "after": cell.parent.name if cell.parent else "",
            "PFLOP": "" if operations is None else f"{operations / 1e15:.3g}",
            "device hours": "" if operations is None else f"{operations / (speed * 3.6e15):.3g}",
            "ended": "yes" if receipt(out, cell.name).with_suffix(".done.json").exists() else "",
        }
        for cell, (operations, _) in zip(cells, found)
    )
    hours = sum(operations or 0.0 for operations, _ in found) / (speed * 3.6e15)
    unknown = sum(operations is None for operations, _ in found)
    besides = f" and those of {unknown} cells without a prediction" if unknown else ""
    lines = [
        f"sweep {sweep.name}, tier {sweep.tier}: {len(cells)} cells, "
        f"{hours:.3g} device hours{besides} at {speed:.3g} TFLOP/s ({how})",
        "Counted are the backbone's operations, 3 in training for each of a forward pass; not heads, data, start-up.",
        *dict.fromkeys(f"without a prediction: {why}" for _, why in found if why),
    ]
    if searches:
        budget = searches.groups[0].search.budget
        lines.append(f"Each of {len(searches.groups)} searches runs up to {budget} such cells.")
    return "\n".join([*lines, "", markdown(table), "", *(_command(cell, out, extra, gpus) for cell in cells)])


def _command(cell: Cell, out: Path, extra: tuple[str, ...], gpus: int | None) -> str:
    """What a person would type for a cell."""
    wanted = cell.step.resources.get("gpus", 1) if gpus is None else gpus
    work = Work((*cell.words(out), *extra), out)
    return shlex.join(["python", *python_words(work, int(wanted))[1:]])


def _predicted(cell: Cell) -> tuple[float | None, str]:
    """The operations of a cell; or None, and why they are not known."""
    try:
        operations = cell_operations(cell)
    except UserError as error:
        return None, str(error).splitlines()[0]
    except Exception as error:  # of a user's part
        return None, f"a part of {cell.backbone} raised {type(error).__name__}: {error}"
    return operations, "" if operations is not None else f"{cell.dataset} does not say how many images it holds"


def cell_operations(cell: Cell) -> float | None:
    """Floating-point operations of a cell's training and feature extraction; None where the images are not counted."""
    recipe = _recipe(cell)
    counts = resolve_dataset(cell.dataset).counts or {}
    train, test = _images(counts, ("train",)), _images(counts, ("val", "test", "query", "gallery"))
    if train is None:
        return None
    overrides = tuple(
        sorted((k, _hashable(v)) for k, v in cell.options.items() if k in BACKBONE_OPTIONS and k != "weights")
    )
    epochs = float(recipe.get("epochs") or 0)
    train *= float(recipe.get("label_fraction") or 1)
    per_image = 0.0
    for size, times in _views(recipe):
        per_image += times * forward(cell.backbone, size, overrides)
    whole = forward(cell.backbone, _side(recipe), overrides)
    if not epochs:
        return whole * (train + (test or 0))
    rounds = 2 if recipe.get("sam", "none") != "none" else 1
    return epochs * train * per_image * rounds + whole * (test or 0)


def _views(recipe: dict[str, Any]) -> list[tuple[Any, float]]:
    """(image size, forward passes' worth of operations) for one image of one epoch."""
    if "local_crops" not in recipe:
        return [(_side(recipe), PASSES)]
    # the student sees all crops, the teacher, without a backward pass, the two large ones
    return [(recipe["size"], 2 * PASSES + 2), (recipe["local_size"], PASSES * recipe["local_crops"])]


def _side(recipe: dict[str, Any]) -> Any:
    """Pixels, or (height, width)."""
    return _hashable(recipe.get("size") or 224)


def _recipe(cell: Cell) -> dict[str, Any]:
    """The values that a cell's command stacks: recipe, smoke layer, options."""
    source = cell.step.source
    layer = read_yaml(source.smoke) if cell.options.get("smoke") and source.smoke.is_file() else {}
    return {**read_yaml(source.path), **layer, **cell.options}


@cache
def forward(backbone: str, size: Any, overrides: tuple[tuple[str, Any], ...]) -> float:
    """Operations of a forward pass of one image."""
    from backbones.backbone import create
    from backbones.flops import flops
    from backbones.spec import resolve

    options = {**dict(overrides), "weights": "random", "load": "strict"}
    divisor = resolve(backbone, **options).divisor or 1
    height, width = size if isinstance(size, tuple) else (size, size)
    padded = tuple(-(-side // divisor) * divisor for side in (height, width))  # as detectors do
    return float(flops(create(backbone, img_size=padded, **options), padded)["total"])


def _images(counts: dict[str, Any], splits: tuple[str, ...]) -> float | None:
    found = [
        counts[split]["images"] for split in splits if isinstance(counts.get(split), dict) and "images" in counts[split]
    ]
    return float(sum(found)) if found else None


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _sustained() -> float:
    """TFLOP/s: a share of what a bf16 matrix product reaches here, on the GPU where there is one."""
    import time

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    side = 8192 if device == "cuda" else 1024
    a = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        product = a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    del product
    return UTILISATION * 2 * side**3 / best / 1e12
