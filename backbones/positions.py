"""Position embeddings of plain ViTs: fixed ones, and learned ones brought to another grid.

Shapes: B images, h x w token grid, D channels; an embedding is [1, prefix + h * w, D], the class token's (the prefix)
first.
"""

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from backbones.attention_functions import without_autocast

Grid = tuple[int, int]
RESAMPLINGS: dict[str, dict[str, Any]] = {
    "antialias": {"mode": "bicubic", "antialias": True},
    "bicubic": {"mode": "bicubic"},
    "dino": {"mode": "bicubic"},
    "bilinear": {"mode": "bilinear"},
    "corners": {"mode": "bilinear", "align_corners": True},
}
"what `pos_resample` can be, as options of torch's interpolation; see `resample_positions`"


def sincos2d(height: int, width: int, dim: int) -> Tensor:
    """Return fixed positions [h * w, D]: sin x, cos x, sin y, cos y at D / 4 frequencies each (MoCo v3, arXiv
    2104.02057).
    """
    if dim % 4:
        raise ValueError(f"sincos2d needs a width that 4 divides, not {dim}")
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


def fit_positions(state: dict[str, Tensor], model: Any, old_grid: Grid | None) -> dict[str, Tensor]:
    """Return a state dict whose `pos_embed` is resampled to the model's grid in the model's way.

    Of plain ViTs, and of VOLO, whose positions [1, h, w, D] need no guess; those of other models are left alone. A
    class token's position that only the state or only the model has is left out, or is zero.

    Args:
        old_grid: (h, w) of the state; None: square, else twice as high as wide (images of persons), else the model's.

    Raises:
        ValueError: the grid cannot be told from the number of tokens.
    """
    if "pos_embed" not in state or getattr(model, "pos_embed", None) is None:
        return state
    positions, way = state["pos_embed"], resampling_of(model)
    if positions.ndim == model.pos_embed.ndim == 4:
        return state | {"pos_embed": resample_positions(positions, model.pos_embed.shape[1:3], way)}
    grid = getattr(model.patch_embed, "grid_size", None) if isinstance(model, VisionTransformer) else None
    if grid is None:
        return state
    prefix_tokens = _prefix_tokens(model)
    prefix = prefix_tokens + (0 if model.no_embed_class else ("cls_token" in state) - model.has_class_token)
    if old_grid is not None and positions.shape[1] - old_grid[0] * old_grid[1] in (0, 1):
        prefix = positions.shape[1] - old_grid[0] * old_grid[1]
    tokens = positions.shape[1] - prefix
    if old_grid is None or old_grid[0] * old_grid[1] != tokens:
        old_grid = _guess_grid(tokens, grid)
    first, patches = positions[:, :prefix], positions[:, prefix:]
    if prefix < prefix_tokens:
        first = torch.cat([positions.new_zeros(1, prefix_tokens - prefix, positions.shape[2]), first], dim=1)
    patches = resample_positions(patches.unflatten(1, old_grid), grid, way).flatten(1, 2)
    return state | {"pos_embed": torch.cat([first[:, :prefix_tokens], patches], dim=1)}


def resampling_of(model: Any) -> str:
    """Return how a model resamples its positions; timm's way if the model does not say."""
    return getattr(model, "pos_resample", "antialias")


def patch_positions(model: Any, grid: Grid) -> Tensor:
    """Return the positions [1, h, w, D] of a plain ViT's patch tokens on a grid."""
    positions = _on_grid(model, model.pos_embed, model.patch_embed.grid_size, grid)
    table: Tensor = positions[:, _prefix_tokens(model) :].unflatten(1, grid)
    return table


def add_positions(model: Any, x: Tensor) -> Tensor:
    """Add positions to the tokens [B, h, w, D] of a plain ViT, and put the prefix tokens in front: [B, N, D].

    A method in place of timm's `_pos_embed`, which knows one way of resampling.
    """
    tokens = (getattr(model, name, None) for name in ("cls_token", "dist_token", "reg_token"))
    first = [token.expand(x.shape[0], -1, -1) for token in tokens if token is not None]
    grid, x = (x.shape[1], x.shape[2]), x.flatten(1, 2)
    if model.pos_embed is None:
        return torch.cat([*first, x], dim=1)
    positions = _on_grid(model, model.pos_embed, model.patch_embed.grid_size, grid)
    x = torch.cat([*first, x + positions], dim=1) if model.no_embed_class else torch.cat([*first, x], dim=1) + positions
    dropped: Tensor = model.pos_drop(x)
    return dropped


def resize_positions(model: Any, img_size: Any = None, patch_size: Any = None) -> None:
    """Give a plain ViT the position grid of another image or patch size: a method in place of timm's."""
    before, grid = model.pos_embed, model.patch_embed.grid_size
    VisionTransformer.set_input_size(model, img_size, patch_size)
    if model.pos_embed is not before:
        model.pos_embed.data = _on_grid(model, before.detach(), grid, model.patch_embed.grid_size)


def set_resampling(model: Any, way: str) -> None:
    """Make one of timm's plain ViTs resample its positions in this way, wherever it does."""
    model.pos_resample = way
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


def _guess_grid(tokens: int, grid: Grid) -> Grid:
    for ratio in (1, 2):
        width = round((tokens / ratio) ** 0.5)
        if ratio * width * width == tokens:
            return ratio * width, width
    if grid[0] * grid[1] == tokens:
        return grid
    raise ValueError(f"`pos_embed` has {tokens} positions of patches: neither a square nor twice as high as wide")
