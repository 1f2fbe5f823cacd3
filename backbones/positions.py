"""Position embeddings of plain ViTs: fixed ones, and learned ones brought to another grid.

Shapes: h x w token grid, D channels; an embedding is [1, prefix + h * w, D], the class token's (the prefix) first.
"""

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

Grid = tuple[int, int]


def sincos2d(height: int, width: int, dim: int) -> Tensor:
    """Fixed positions [h * w, D]: sin x, cos x, sin y, cos y at D / 4 frequencies each (MoCo v3, arXiv 2104.02057)."""
    if dim % 4:
        raise ValueError(f"sincos2d needs a width that 4 divides, not {dim}")
    frequencies = 10000 ** -torch.linspace(0, 1, dim // 4)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angles_x, angles_y = (axis.reshape(-1, 1) * frequencies for axis in (x, y))
    return torch.cat([angles_x.sin(), angles_x.cos(), angles_y.sin(), angles_y.cos()], dim=1)


def fit_positions(state: dict[str, Tensor], model: Any, old_grid: Grid | None) -> dict[str, Tensor]:
    """A state dict whose `pos_embed` is resampled to the model's grid (bicubic, antialiased, as in timm).

    Of plain ViTs, and of VOLO, whose positions [1, h, w, D] need no guess; those of other models are left alone. A
    class token's position that only the state or only the model has is left out, or is zero.

    Args:
        old_grid: (h, w) of the state; None: square, else twice as high as wide (images of persons), else the model's.

    Raises:
        ValueError: the grid cannot be told from the number of tokens.
    """
    if "pos_embed" not in state or getattr(model, "pos_embed", None) is None:
        return state
    positions = state["pos_embed"]
    if positions.ndim == model.pos_embed.ndim == 4:
        return state | {"pos_embed": on_grid(positions, model.pos_embed.shape[1:3])}
    grid = getattr(model.patch_embed, "grid_size", None) if isinstance(model, VisionTransformer) else None
    if grid is None:
        return state
    wanted = 0 if model.no_embed_class else model.num_prefix_tokens
    prefix = wanted + (0 if model.no_embed_class else ("cls_token" in state) - model.has_class_token)
    if old_grid is not None and positions.shape[1] - old_grid[0] * old_grid[1] in (0, 1):
        prefix = positions.shape[1] - old_grid[0] * old_grid[1]
    tokens = positions.shape[1] - prefix
    if old_grid is None or old_grid[0] * old_grid[1] != tokens:
        old_grid = _guess(tokens, grid)
    first, patches = positions[:, :prefix], positions[:, prefix:]
    if prefix < wanted:
        first = torch.cat([positions.new_zeros(1, wanted - prefix, positions.shape[2]), first], dim=1)
    patches = resample_abs_pos_embed(patches, list(grid), list(old_grid), num_prefix_tokens=0)
    return state | {"pos_embed": torch.cat([first[:, :wanted], patches], dim=1)}


def on_grid(positions: Tensor, grid: Sequence[int]) -> Tensor:
    """[1, h, w, D] resampled to another grid (bicubic, antialiased)."""
    flat = resample_abs_pos_embed(positions.flatten(1, 2), list(grid), list(positions.shape[1:3]), num_prefix_tokens=0)
    return flat.unflatten(1, tuple(grid))


def _guess(tokens: int, grid: Grid) -> Grid:
    for ratio in (1, 2):
        width = round((tokens / ratio) ** 0.5)
        if ratio * width * width == tokens:
            return ratio * width, width
    if grid[0] * grid[1] == tokens:
        return grid
    raise ValueError(f"`pos_embed` has {tokens} positions of patches: neither a square nor twice as high as wide")
