"""Position embeddings of plain ViTs: fixed ones, and learned ones brought to another grid.

Shapes: B images, h x w token grid, D channels; an embedding is [1, prefix + h * w, D], the class token's (the prefix)
first.
"""

import math
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from backbones.kernels.functions import without_autocast

Grid = tuple[int, int]
_PREFIX = ("cls_token", "dist_token", "reg_token")
"the tokens before those of the patches, in timm's order"
RESAMPLINGS: dict[str, dict[str, Any]] = {
    "antialias": {"mode": "bicubic", "antialias": True},
    "bicubic": {"mode": "bicubic"},
    "dino": {"mode": "bicubic"},
    "bilinear": {"mode": "bilinear"},
    "corners": {"mode": "bilinear", "align_corners": True},
}
"what `pos_embed_interp` can be, as options of torch's interpolation; see `resample_positions`"


def sincos2d(height: int, width: int, dim: int) -> Tensor:
    """Return fixed positions [h * w, D]: sin x, cos x, sin y, cos y at D / 4 frequencies each (MoCo v3, arXiv
    2104.02057); 4 divides D.
    """
    frequencies = 10000 ** -torch.linspace(0, 1, dim // 4)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angles_x, angles_y = (axis.reshape(-1, 1) * frequencies for axis in (x, y))
    return torch.cat([angles_x.sin(), angles_x.cos(), angles_y.sin(), angles_y.cos()], dim=1)


def resample_positions(table: Tensor, grid: Sequence[int], way: str) -> Tensor:
    """Return positions [1, h, w, D] on another grid; unchanged if the grid is the same.

    Computed in float32 at least, whatever the autocast.

    Args:
        table: one vector for each place of the old grid.
        grid: (h, w) of the new one.
        way: `antialias`: bicubic with a = -0.5, low-passed where the grid shrinks (timm). `bicubic`: a = -0.75, without
            that (ViTDet, DeiT, VOLO). `dino`: likewise, at the scale (side + 0.1) / old side (DINO, whose places are
            therefore a little off those of `bicubic`). `bilinear` (TransReID). `corners`: bilinear, the corners of both
            grids on each other (big_vision).
    """
    old, new = tuple(table.shape[1:3]), tuple(grid)
    if old == new:
        return table
    places: dict[str, Any] = {"size": new}
    if way == "dino":
        places = {"scale_factor": tuple((side + 0.1) / before for side, before in zip(new, old))}
    with without_autocast(table):
        wide = table.to(torch.promote_types(table.dtype, torch.float32)).permute(0, 3, 1, 2)
        resized = F.interpolate(wide, **places, **RESAMPLINGS[way])
    return resized.permute(0, 2, 3, 1).to(table.dtype)


def position_grid(model: Any) -> Grid | None:
    """Return the grid (h, w) of a model's positions; None where it has none that are resampled here."""
    positions = getattr(model, "pos_embed", None)
    if positions is not None and positions.ndim == 4:
        return positions.shape[1], positions.shape[2]
    return model.patch_embed.grid_size if positions is not None and isinstance(model, VisionTransformer) else None


def source_grid(
    state: dict[str, Tensor], model: Any, size: Sequence[int] | None = None, *, squares: bool = True
) -> Grid | None:
    """Return the grid (h, w) of the positions in a state dict; None where a model's positions are not resampled here.

    That of `size` if it is given; the model's, where the number of positions is the model's; or a square.

    Args:
        size: (H, W) in pixels of the images that the state was trained on; patches may overlap.
        squares: whether a number that is a square may mean one.

    Raises:
        ValueError: the grid cannot be told.
    """
    grid = position_grid(model)
    if grid is None or "pos_embed" not in state:
        return None
    if state["pos_embed"].ndim < 3:
        raise ValueError(f"`pos_embed` is {list(state['pos_embed'].shape)}, not [1, positions, width]")
    count, here = state["pos_embed"].shape[1], grid[0] * grid[1]
    if state["pos_embed"].ndim == 4:
        return count, state["pos_embed"].shape[2]
    # before the patches' there are none, or the class token's (registers have none in DINOv2), or the registers' too
    first = [state[name].shape[1] for name in _PREFIX if name in state]
    numbers = {number for some in range(len(first) + 1) if (number := count - sum(first[:some])) > 0}
    grids = [grid] if here in numbers else []
    sides = [side for side in {*map(math.isqrt, numbers)} if side * side in numbers and grid != (side, side)]
    patch = model.patch_embed.patch_size[0]
    if size is not None:
        strides = range(patch, 0, -1) if min(size) >= patch else ()
        steps = [((size[0] - patch) // stride + 1, (size[1] - patch) // stride + 1) for stride in strides]
        grids = [(height, width) for height, width in steps if height * width in numbers][:1]
    elif squares:
        alike = {here} if grids and count == model.pos_embed.shape[1] else numbers
        grids += [(side, side) for side in sides if side * side in alike]
    if len(grids) != 1:
        why = f"no grid of {size[0]} x {size[1]} pixels" if size else "which do not determine their grid"
        squares_here = "".join(f"; a square would be --weights-size {side * patch} {side * patch}" for side in sides)
        fix = f"set --weights-size H W, the pixels of the images that it was trained on{squares_here}"
        raise ValueError(f"`pos_embed` has {count} positions, {why}; {fix}")
    return grids[0]


def fit_positions(state: dict[str, Tensor], model: Any, old: Grid | None) -> dict[str, Tensor]:
    """Return a state dict whose `pos_embed` is resampled to the model's grid in the model's way.

    Of plain ViTs, and of VOLO, whose positions are [1, h, w, D]. A position that the class token has only in the state
    is added to the token, and one that it has only in the model is zero.

    Args:
        old: (h, w) of the state, as `source_grid` returns it; None leaves the state as it is.
    """
    new = position_grid(model)
    if old is None or new is None:
        return state
    positions, way = state["pos_embed"], resampling_of(model)
    if positions.ndim == 4:
        return state | {"pos_embed": resample_positions(positions, new, way)}
    here, there = _prefix_tokens(model), positions.shape[1] - old[0] * old[1]
    first, patches = positions[:, :there], positions[:, there:]
    if here == 0:
        for name in filter(state.__contains__, _PREFIX):
            position, first = first[:, : state[name].shape[1]], first[:, state[name].shape[1] :]
            state = state | ({name: state[name].float() + position.float()} if position.shape[1] else {})
    first = F.pad(first[:, :here], (0, 0, 0, max(here - there, 0)))
    patches = resample_positions(patches.unflatten(1, old), new, way).flatten(1, 2)
    return state | {"pos_embed": torch.cat([first, patches], dim=1)}


def resampling_of(model: Any) -> str:
    """Return how a model resamples its positions; timm's way if the model does not say."""
    return getattr(model, "pos_embed_interp", "antialias")


def patch_positions(model: Any, grid: Grid) -> Tensor:
    """Return the positions [1, h, w, D] of a plain ViT's patch tokens on a grid."""
    positions = _on_grid(model, model.pos_embed, model.patch_embed.grid_size, grid)
    return positions[:, _prefix_tokens(model) :].unflatten(1, grid)


def add_positions(model: Any, x: Tensor) -> Tensor:
    """Add positions to the tokens [B, h, w, D] of a plain ViT, and put the prefix tokens in front: [B, N, D].

    A method in place of timm's `_pos_embed`, which knows one way of resampling.
    """
    tokens = (getattr(model, name, None) for name in _PREFIX)
    first = [token.expand(x.shape[0], -1, -1) for token in tokens if token is not None]
    grid, x = (x.shape[1], x.shape[2]), x.flatten(1, 2)
    if model.pos_embed is None:
        return torch.cat([*first, x], dim=1)
    positions = _on_grid(model, model.pos_embed, model.patch_embed.grid_size, grid)
    x = torch.cat([*first, x + positions], dim=1) if model.no_embed_class else torch.cat([*first, x], dim=1) + positions
    return model.pos_drop(x)


def resize_positions(model: Any, img_size: Any = None, patch_size: Any = None) -> None:
    """Give a plain ViT the position grid of another image or patch size: a method in place of timm's."""
    before, grid = model.pos_embed, model.patch_embed.grid_size
    VisionTransformer.set_input_size(model, img_size, patch_size)
    if before is not None:
        model.pos_embed.data = _on_grid(model, before.detach(), grid, model.patch_embed.grid_size)


def set_resampling(model: Any, way: str) -> None:
    """Make one of timm's plain ViTs resample its positions in this way, wherever it does."""
    model.pos_embed_interp = way
    model._pos_embed, model.set_input_size = MethodType(add_positions, model), MethodType(resize_positions, model)


def _on_grid(model: Any, positions: Tensor, old: Grid, new: Grid) -> Tensor:
    """Return [1, prefix + N, D] with the patches' positions on another grid."""
    if tuple(old) == tuple(new):
        return positions
    prefix = _prefix_tokens(model)
    patches = resample_positions(positions[:, prefix:].unflatten(1, tuple(old)), new, resampling_of(model))
    return torch.cat([positions[:, :prefix], patches.flatten(1, 2)], dim=1)


def _prefix_tokens(model: Any) -> int:
    return 0 if model.no_embed_class else model.num_prefix_tokens
