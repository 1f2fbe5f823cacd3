"""Feature maps of a backbone for detectors: plain ViTs with windowed and global blocks, and timm's other models.

Shapes: B images, H x W pixels, h x w token grid, D channels, s side of a window in tokens.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.models.swin_transformer import window_partition, window_reverse
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from backbones.attention import Attention, UserAttention, takes_scale
from backbones.backbone import NEEDED_FOR_MAPS, Backbone
from backbones.kernels.functions import checked_qkv, softmax
from backbones.kernels.operator import padded_width
from backbones.positions import Grid, patch_positions
from backbones.token_shards import Shards
from backbones.vit import attach_shards
from tasks.detect.task import block_index
from transfer.core.errors import UsageError
from transfer.engine.optim import FlatViews


class RelativePositions(nn.Module):
    """Decomposed relative positions, as in ViTDet (arXiv 2203.16527, after MViTv2, arXiv 2112.01526, section 4.1).

    An attention function of q, k, v whose scores q k^T / sqrt(d) become q k^T / sqrt(d) + q R_h + q R_w.

    So softmax(q k^T / sqrt(d) + q R_h + q R_w) v, and L^-alpha h(q k^T / sqrt(d) + q R_h + q R_w) v, of N = h w tokens.

    `grid`, the (h, w) of the tokens, and `size`, the grid that they are a corner of (a window's, where it ends behind
    the image), are set by the caller, since tokens alone do not determine them.

    Args:
        inner: takes q and k of any width, v, and their `scale`; see `backbones.attention.takes_scale`.
        head_dim: d. size: (h, w) that the tables are made for; they are interpolated for others. They start at zero.
    """

    wraps_inner = True
    """Tells exports of the backbone that the tables belong to the detector, and `inner` to the backbone."""

    def __init__(self, inner: Callable[..., Tensor], head_dim: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.inner = inner
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * size[0] - 1, head_dim))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * size[1] - 1, head_dim))
        self.size = self.grid = size

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return attention [B, heads, N, d] of q, k, v [B, heads, N, d]."""
        q, k, v = checked_qkv(q, k, v)
        wide_q, wide_k = self._extended(q, k)
        if q.is_meta:  # operations are counted: positions are added to the scores, and do not widen their product
            return self.inner(q, k, v, scale=1.0, **options)
        return self.inner(wide_q, wide_k, v, scale=1.0, **options)

    def _extended(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return q and k [B, heads, N, d + h + w] whose products are the scores with the positions in them.

        A key carries the unit vectors of its row and its column, a query its scores of all rows and columns: so no
        N x N tensor of positions, for which no fused kernel has a gradient, is ever made. On a GPU zeros pad them to
        a width that the kernels of point-wise attention take.
        """
        h, w = self.grid
        on_grid = q.unflatten(2, (h, w))
        by_row, by_column = distances(self.rel_pos_h, self.size[0], h), distances(self.rel_pos_w, self.size[1], w)
        rows = torch.einsum("bnhwd,hkd->bnhwk", on_grid, by_row.to(q.dtype)).flatten(2, 3)
        columns = torch.einsum("bnhwd,wkd->bnhwk", on_grid, by_column.to(q.dtype)).flatten(2, 3)
        row, column = torch.eye(h, device=q.device, dtype=q.dtype), torch.eye(w, device=q.device, dtype=q.dtype)
        units = torch.cat([row.repeat_interleave(w, 0), column.repeat(h, 1)], dim=1)
        width = q.shape[-1] + h + w
        filled = 0 if self.inner is softmax else padded_width(q, width) - width
        units = F.pad(units, (0, filled)).expand(*k.shape[:2], -1, -1)
        scaled = [q * q.shape[-1] ** -0.5, rows.to(q.dtype), columns.to(q.dtype)]
        scaled += [q.new_zeros(*q.shape[:3], filled)] if filled else []
        return torch.cat(scaled, dim=-1), torch.cat([k, units], dim=-1)


def distances(table: Tensor, length: int, shown: int) -> Tensor:
    """Return [shown, shown, d]: the row of the table for i - j, for a query at i and a key at j.

    Args:
        table: [2 M - 1, d] for distances -(M - 1) .. M - 1; interpolated linearly to 2 length - 1 rows.
        length: places that the table is for.
        shown: number of places returned, from the first on.
    """
    if len(table) != 2 * length - 1:
        resized = F.interpolate(table.float().T[None], size=2 * length - 1, mode="linear")
        table = resized[0].T.to(table.dtype)
    places = torch.arange(shown, device=table.device)
    return table[places[:, None] - places[None, :] + length - 1]


@dataclass(frozen=True, kw_only=True)
class VitMapOptions:
    """How a plain ViT computes its maps."""

    out_indices: tuple[int, ...]
    """Blocks whose maps are returned, rising; -1 is the last."""
    window: int = 0
    """Side of the windows in tokens (ViTDet: 14); with 0 every block sees the whole image."""
    global_blocks: tuple[int, ...] | None = None
    """Blocks without windows; None stands for the last of each quarter (ViTDet: 2, 5, 8, 11 of 12)."""
    padding: Literal["keys", "masked"] = "masked"
    """Treatment of windows that end beyond the image: no keys there, or zeros before the projections, as in ViTDet."""
    relative: bool = False
    """Whether attention has relative positions, decomposed into rows and columns and initialised to zero."""
    grid: tuple[int, int] = (64, 64)
    """Token grid of the tables of relative positions of global blocks."""
    grad_checkpointing: bool = False
    """Whether a block's activations are recomputed in the backward pass instead of kept."""


class VitMaps(nn.Module):
    """Images [B, 3, H, W] in [0, 1] -> maps [B, D, H / patch, W / patch], one for each tap.

    The class token and its position are left out, as in ViTDet (arXiv 2203.16527, section 3); positions are resampled
    in every pass. Windows at the bottom and right are smaller, or padded; only a block's attention works
    within windows.

    Args:
        backbone: a plain ViT, which is changed.
        options: windows, positions and returned maps.

    Raises:
        UsageError: taps or global blocks that do not exist, no tap at the last block, or a part that cannot be
            windowed.
    """

    def __init__(self, backbone: Backbone, options: VitMapOptions) -> None:
        super().__init__()
        model: Any = backbone.model
        depth = len(model.blocks)
        self.backbone, self.options = backbone, options
        self.out_indices = [block_index(tap, depth, "--out-indices") for tap in options.out_indices]
        unwindowed = quarters(backbone) if options.global_blocks is None else options.global_blocks
        blocks = {block_index(block, depth, "--global-blocks") for block in unwindowed}
        self.windowed = [bool(options.window) and number not in blocks for number in range(depth)]
        if max(self.out_indices) < depth - 1:
            fix = f"end with block {depth - 1}, the last, or take fewer by --depth"
            raise UsageError(f"--out-indices {' '.join(map(str, self.out_indices))}: {fix}")
        if (any(self.windowed) or options.relative) and not all(type(block) is Block for block in model.blocks):
            fix = "use --window 0 --no-relative"
            raise UsageError(f"{backbone.spec.name}: its blocks are not timm's plain blocks; {fix}")
        if options.relative:
            self._add_relative(model)
        self.channels = [backbone.dim for _ in self.out_indices]
        self.strides = [backbone.stride for _ in self.out_indices]
        self.shards: Shards | None = None

    def share_tokens(self, shards: Shards) -> None:
        """Make the global blocks work on their rank's tokens while they train.

        Raises:
            UsageError: see `backbones.vit.share_tokens`; or there are relative positions.
        """
        if self.options.relative:
            fix = "use --no-relative"
            raise UsageError(f"--sequence-parallel {shards.size}: not supported with relative positions; {fix}")
        attach_shards(self.backbone.model, shards)
        self.shards = shards

    def _add_relative(self, model: Any) -> None:
        for block, windowed in zip(model.blocks, self.windowed):
            if not isinstance(block.attn, Attention) or not takes_scale(block.attn.core):
                need = "need an attention of this suite; use --no-relative"
                raise UsageError(f"{self.backbone.spec.name}: relative positions {need}")
            size = (self.options.window,) * 2 if windowed else self.options.grid
            block.attn.core = RelativePositions(block.attn.core, block.attn.head_dim, size)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the map of each tap; see the class."""
        x, maps = self._embedded(images), []
        for number in range(len(self.backbone.model.blocks)):
            if self.options.grad_checkpointing and self.training:
                x = checkpoint(self._block, number, x, use_reentrant=False, context_fn=partial(self._passes, number))
            else:
                x = self._block(number, x)
            if number in self.out_indices:
                maps.append(x.permute(0, 3, 1, 2).contiguous())
        return maps

    def _embedded(self, images: Tensor) -> Tensor:
        """Return the tokens with their positions, [B, h, w, D]."""
        model, patch = self.backbone.model, self.backbone.stride
        height, width = images.shape[2] // patch, images.shape[3] // patch
        x = model.patch_embed(self.backbone.normalised(images))
        x = x.reshape(images.shape[0], height, width, -1)
        if model.pos_embed is not None:
            x = x + patch_positions(model, (height, width))
        return model.norm_pre(model.pos_drop(x))

    def _passes(self, number: int) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of a block's two passes: the second leaves running statistics as they are."""
        return nullcontext(), FlatViews(self.backbone.model.blocks[number].buffers()).kept()

    def _block(self, number: int, x: Tensor) -> Tensor:
        """Apply one block to tokens [B, h, w, D]."""
        block: Any = self.backbone.model.blocks[number]
        if self.shards is not None and self.training and not self.windowed[number]:
            return self._shared(block, x, self.shards)
        if type(block) is not Block:
            return block(x.flatten(1, 2)).view(x.shape)
        size = self.options.window if self.windowed[number] else 0
        x = x + block.drop_path1(block.ls1(self._attend(block.attn, block.norm1(x), size)))
        rest = block.mlp(block.norm2(x).flatten(1, 2)).view(x.shape)
        return x + block.drop_path2(block.ls2(rest))

    def _shared(self, block: Any, x: Tensor, shards: Shards) -> Tensor:
        """Apply a global block to this rank's share of tokens [B, h, w, D], and gather the tokens of all ranks."""
        try:
            return shards.join(block(shards.split(x.flatten(1, 2)))).view(x.shape)
        finally:
            shards.tokens = None  # checkpointing ends its second pass early, by an exception

    def _attend(self, attention: Any, x: Tensor, size: int) -> Tensor:
        """Apply attention to tokens [B, h, w, D] within windows of size x size tokens, or with size 0 over all."""
        height, width = x.shape[1:3]
        if not size:
            return self._within(attention, x, (height, width), (height, width))
        if self.options.padding == "keys":
            x = F.pad(x, (0, 0, 0, -width % size, 0, -height % size))
        bands = []
        for band in full_and_rest(x, size, 1):
            regions = full_and_rest(band, size, 2)
            attended = [self._within(attention, region, (size, size), (height, width)) for region in regions]
            bands.append(torch.cat(attended, 2))
        return torch.cat(bands, 1)[:, :height, :width]

    def _within(self, attention: Any, x: Tensor, size: Grid, image: Grid) -> Tensor:
        """Apply attention to tokens [B, h, w, D] in windows of equal size, no larger than `size`.

        Args:
            attention: attention of a block.
            x: tokens.
            size: largest window, in tokens.
            image: token grid of the whole image.
        """
        shape = min(size[0], x.shape[1]), min(size[1], x.shape[2])
        if isinstance(getattr(attention, "core", None), RelativePositions):
            attention.core.size, attention.core.grid = size, shape
        tokens = window_partition(x, shape).flatten(1, 2)
        if isinstance(attention, Attention | UserAttention):
            tokens = attention(tokens, image_tokens=image[0] * image[1])
        else:
            tokens = attention(tokens)
        return window_reverse(tokens, shape, x.shape[1], x.shape[2])


class StageMaps(nn.Module):
    """Images [B, 3, H, W] in [0, 1] -> maps of the stages of one of timm's other models.

    Args:
        backbone: any with maps. Its stages of strides 4, 8, 16 and 32 are taken, or, in a model without all of these
            (VOLO, XCiT), the last.

    Raises:
        UsageError: the model gives no maps.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        info = getattr(backbone.model, "feature_info", None)
        if not info or not hasattr(backbone.model, "forward_intermediates"):
            lacks = f"gives pooled features only, no maps; {NEEDED_FOR_MAPS}"
            raise UsageError(f"{backbone.spec.name}: {backbone.spec.arch} {lacks}")
        strides = [int(entry["reduction"]) for entry in info]
        last = {stride: number for number, stride in enumerate(strides)}
        stages = [last[stride] for stride in (4, 8, 16, 32) if stride in last]
        self.backbone, self.stages = backbone, stages if len(stages) == 4 else [-1]
        self.channels = [int(info[stage]["num_chs"]) for stage in self.stages]
        self.strides = [strides[stage] for stage in self.stages]

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the map of each stage; see the class."""
        return self.backbone.maps(images, self.stages)


def make_maps(backbone: Backbone, options: VitMapOptions) -> VitMaps | StageMaps:
    """Return the module that computes a backbone's maps. Raises UsageError when it has none."""
    if is_plain(backbone):
        return VitMaps(backbone, options)
    if options.window or options.relative or options.grad_checkpointing:
        hint = "--window 0 --no-relative --no-grad-checkpointing"
        raise UsageError(f"{backbone.spec.name}: {backbone.spec.arch} is not a plain ViT; use {hint}")
    return StageMaps(backbone)


def is_plain(backbone: Backbone) -> bool:
    """Return whether a backbone is a ViT of one stride, made of blocks."""
    return isinstance(backbone.model, VisionTransformer)


def quarters(backbone: Backbone) -> tuple[int, ...]:
    """Return the last block of each quarter of a plain ViT: 2, 5, 8, 11 of 12."""
    depth = len(getattr(backbone.model, "blocks", ()))
    return tuple(depth * quarter // 4 - 1 for quarter in range(1, 5))


def full_and_rest(x: Tensor, size: int, dim: int) -> tuple[Tensor, ...]:
    """Split tokens [B, h, w, D] along a side into the part that full windows cover, and the rest, if there are any.

    In each region all windows hold equally many tokens, none of which is padding.
    """
    side = x.shape[dim]
    return x.split([length for length in (side // size * size, side % size) if length], dim)
