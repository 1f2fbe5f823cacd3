"""Similarity maps of an image's tokens, kept with a run of task `tokens`.

Shapes: B images, n tokens, h x w token grid.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.runtime.files import write_arrays
from tasks.ranking.galleries import read_arrays
from tasks.token_diagnostics.hook_points import HookPoint, find_hook_points

MAPS = "maps.npz"  # in a run's folder
IMAGES = 12
"""Images whose maps are kept."""


def similarity_maps(backbone: Backbone, images: Tensor) -> dict[str, NDArray[Any]]:
    """Return the cosine similarity of every token with the token in the middle, [B, h, w] for each place.

    Places are the stem, the positions, and the first, middle and last block; a place whose tokens form no grid is left
    out. A token that is zero has similarity 0.

    Args:
        backbone: a plain vision transformer or a VOLO.
        images: [B, 3, H, W] in [0, 1].
    """
    points = _shown(find_hook_points(backbone))
    outputs: dict[str, Tensor] = {}
    with ExitStack() as hooked, torch.inference_mode():
        for point in points:

            def keep(module: nn.Module, inputs: Any, output: Any, point: HookPoint = point) -> None:
                if isinstance(output, Tensor):
                    tokens = point.tokens(output, class_token=False)
                    if tokens is not None:
                        outputs[point.name] = tokens

            hooked.callback(point.module.register_forward_hook(keep).remove)
        backbone(images)
    height, width = images.shape[2:]
    maps = {point.name: _map(outputs[point.name], height / width) for point in points if point.name in outputs}
    return {name: values for name, values in maps.items() if values is not None}


def _shown(points: Sequence[HookPoint]) -> list[HookPoint]:
    blocks = [point for point in points if point.kind in ("block", "outlooker")]
    places = sorted({0, (len(blocks) - 1) // 2, len(blocks) - 1}) if blocks else []
    first = [point for point in points if point.kind in ("stem", "positions")]
    return [*first, *(blocks[place] for place in places)]


def _map(tokens: Tensor, ratio: float) -> NDArray[Any] | None:
    """Return the similarities [B, h, w] of tokens [B, n, D]; None if n tokens are no grid of this ratio h / w."""
    count = tokens.shape[1]
    height = round((count * ratio) ** 0.5)
    if height < 1 or count % height or abs(height / (count // height) / ratio - 1) > 0.2:
        return None
    width = count // height
    unit = nn.functional.normalize(tokens.double(), dim=2)
    middle = unit[:, (height // 2) * width + width // 2]
    similarity = (unit @ middle[:, :, None]).reshape(-1, height, width)
    found: NDArray[Any] = similarity.float().cpu().numpy()
    return found


def save_maps(folder: Path, images: Sequence[int], maps: dict[str, NDArray[Any]]) -> None:
    """Write maps into a run's folder. Raises UserError if they cannot be written.

    Args:
        folder: of the run.
        images: places of the images [B] in the validation split.
        maps: see `similarity_maps`.
    """
    arrays = {f"map {number} {name}": values for number, (name, values) in enumerate(maps.items())}
    write_arrays(folder / MAPS, arrays | {"images": np.asarray(images)})


def read_maps(path: Path) -> tuple[list[int], dict[str, NDArray[Any]]]:
    """Return what `save_maps` wrote. Raises UserError if the file is missing or corrupt."""
    arrays = read_arrays(path)
    names = sorted((name for name in arrays if name.startswith("map ")), key=lambda name: int(name.split(" ")[1]))
    return arrays["images"].tolist(), {name.split(" ", 2)[2]: arrays[name] for name in names}
