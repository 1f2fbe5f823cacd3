"""Feature maps of a backbone for detectors: plain ViTs with windowed and global blocks, and timm's other models.

Letters: B images, H x W pixels, h x w token grid, D channels, s side of a window in tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from backbones.attention import Attention, UserAttention, takes_scale
from backbones.backbone import Backbone
from backbones.engine.sequence_parallel import attach_shards
from backbones.errors import UsageError
from backbones.positions import Grid, patch_positions
from backbones.token_shards import Shards
from tasks.detection.options import check_relative
from tasks.detection.relative_positions import RelativePositions

Padding = Literal["keys", "masked"]


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """How a plain ViT computes its maps."""

    taps: tuple[int, ...]
    """Blocks whose maps leave, rising; -1 is the last."""
    window: int = 0
    """Side of the windows in tokens (ViTDet: 14); 0: every block sees the whole image."""
    global_blocks: tuple[int, ...] | None = None
    """Blocks without windows. None: the last of each quarter (ViTDet: 2, 5, 8, 11 of 12)."""
    padding: Padding = "masked"
    """Where the windows end behind the image: no keys there, or zeros before the projections, as in ViTDet."""
    relative: bool = False
    """Relative positions, decomposed into rows and columns, from zero."""
    grid: tuple[int, int] = (64, 64)
    """Token grid that the relative positions of global blocks are made for."""
    checkpoint: bool = False
    """Compute a block's activations again in the backward pass, instead of keeping them."""


class VitMaps(nn.Module):
    """Images [B, 3, H, W] in [0, 1] -> maps [B, D, H / patch, W / patch], one for each tap.

    The class token and its position are left out, as in ViTDet (arXiv 2203.16527, section 3); positions are resampled
    in every pass. Windows at the bottom and right hold the tokens that are there, or are padded; a block's windows
    surround its attention alone.

    Args:
        backbone: of a plain ViT; its parts are used and changed. Blocks behind the last tap are taken out.

    Raises:
        UsageError: taps or global blocks that do not exist, or a part that cannot be windowed.
    """

    def __init__(self, backbone: Backbone, options: MapOptions) -> None:
        super().__init__()
        model: Any = backbone.model
        depth = len(model.blocks)
        self.backbone, self.options = backbone, options
        self.taps = [_index(tap, depth, "taps") for tap in options.taps]
        if len({*self.taps}) < len(self.taps):
            raise UsageError(f"{backbone.spec.name}: taps {self.taps}: four different blocks are needed")
        chosen = quarters(backbone) if options.global_blocks is None else options.global_blocks
        self.windowed = [
            bool(options.window) and number not in {_index(block, depth, "global blocks") for block in chosen}
            for number in range(depth)
        ]
        if options.window and not any(self.windowed):
            raise UsageError(
                f"{backbone.spec.name}: --window {options.window} has no effect: all {depth} blocks are global; name "
                "fewer with --global-blocks, or --window 0"
            )
        del model.blocks[max(self.taps) + 1 :]
        if (any(self.windowed) or options.relative) and not all(type(block) is Block for block in model.blocks):
            raise UsageError(f"{backbone.spec.name}: its blocks are not timm's plain ones: --window 0 --no-relative")
        if options.relative:
            self._add_relative(model)
        self.channels, self.strides = [backbone.dim] * len(self.taps), [backbone.stride] * len(self.taps)
        self.shards: Shards | None = None

    def share_tokens(self, shards: Shards) -> None:
        """Has the global blocks work on their rank's tokens while they train.

        Raises:
            UsageError: as `backbones.engine.sequence_parallel.share_tokens`, and for relative positions.
        """
        if self.options.relative:
            raise UsageError(f"--sequence-parallel {shards.size}: not with relative positions: --no-relative")
        attach_shards(self.backbone.model, shards)
        self.shards = shards

    def _add_relative(self, model: Any) -> None:
        for block, windowed in zip(model.blocks, self.windowed):
            if not isinstance(block.attn, Attention) or not takes_scale(block.attn.core):
                check_relative(self.backbone.spec)
                raise UsageError(
                    f"{self.backbone.spec.name}: relative positions need an attention of this suite: --no-relative"
                )
            size = (self.options.window,) * 2 if windowed else self.options.grid
            block.attn.core = RelativePositions(block.attn.core, block.attn.head_dim, size)

    def forward(self, images: Tensor) -> list[Tensor]:
        """See the class."""
        x, found = self._embedded(images), []
        for number in range(len(self.backbone.model.blocks)):
            if self.options.checkpoint and self.training:
                x = checkpoint(self._block, number, x, use_reentrant=False)
            else:
                x = self._block(number, x)
            if number in self.taps:
                found.append(x.permute(0, 3, 1, 2).contiguous())
        return found

    def _embedded(self, images: Tensor) -> Tensor:
        """Tokens with their positions, [B, h, w, D]."""
        model, patch = self.backbone.model, self.backbone.stride
        height, width = images.shape[2] // patch, images.shape[3] // patch
        x = model.patch_embed(self.backbone.normalised(images))
        x = x.reshape(len(images), height, width, -1)
        if model.pos_embed is not None:
            x = x + patch_positions(model, (height, width))
        tokens: Tensor = model.norm_pre(model.pos_drop(x))
        return tokens

    def _block(self, number: int, x: Tensor) -> Tensor:
        """One block on tokens [B, h, w, D]."""
        block: Any = self.backbone.model.blocks[number]
        if self.shards is not None and self.training and not self.windowed[number]:
            return self._shared(block, x, self.shards)
        if type(block) is not Block:
            grid: Tensor = block(x.flatten(1, 2)).view(x.shape)
            return grid
        size = self.options.window if self.windowed[number] else 0
        x = x + block.drop_path1(block.ls1(self._attend(block.attn, block.norm1(x), size)))
        rest = block.mlp(block.norm2(x).flatten(1, 2)).view(x.shape)
        tokens: Tensor = x + block.drop_path2(block.ls2(rest))
        return tokens

    def _shared(self, block: Any, x: Tensor, shards: Shards) -> Tensor:
        """A global block on this rank's share of tokens [B, h, w, D]; all of them again behind it."""
        try:
            return shards.join(block(shards.split(x.flatten(1, 2)))).view(x.shape)
        finally:
            shards.tokens = None  # checkpointing leaves its second pass by an exception, as soon as it has enough

    def _attend(self, attention: Any, x: Tensor, size: int) -> Tensor:
        """Attention within windows of size x size tokens, 0: over all; on [B, h, w, D]."""
        height, width = x.shape[1:3]
        if not size:
            return self._within(attention, x, (height, width), (height, width))
        if self.options.padding == "keys":
            x = F.pad(x, (0, 0, 0, -width % size, 0, -height % size))
        parts = [
            [self._within(attention, part, (size, size), (height, width)) for part in row] for row in regions(x, size)
        ]
        return _side_by_side([_side_by_side(row, 2) for row in parts], 1)[:, :height, :width]

    def _within(self, attention: Any, x: Tensor, size: Grid, image: Grid) -> Tensor:
        """Attention on [B, h, w, D] in windows no larger than `size`, all of one size.

        Args:
            image: token grid that the windows were taken from.
        """
        shape = min(size[0], x.shape[1]), min(size[1], x.shape[2])
        if isinstance(getattr(attention, "core", None), RelativePositions):
            attention.core.size, attention.core.grid = size, shape
        ours = isinstance(attention, Attention | UserAttention)
        tokens = windows(x, shape)
        tokens = attention(tokens, image_tokens=image[0] * image[1]) if ours else attention(tokens)
        return joined(tokens, shape, (x.shape[1], x.shape[2]))


class StageMaps(nn.Module):
    """Images [B, 3, H, W] in [0, 1] -> maps of the stages of one of timm's other models.

    Args:
        backbone: any with maps. stages: their numbers; None: those of strides 4, 8, 16 and 32, or, in a model without
            all of these (VOLO, XCiT), the last.

    Raises:
        UsageError: the model gives no maps.
    """

    def __init__(self, backbone: Backbone, stages: Sequence[int] | None = None) -> None:
        super().__init__()
        info = getattr(backbone.model, "feature_info", None)
        if not info or not hasattr(backbone.model, "forward_intermediates"):
            raise UsageError(f"{backbone.spec.name}: {backbone.spec.arch} gives pooled features only, no maps")
        strides = [int(entry["reduction"]) for entry in info]
        if stages is None:
            last = {stride: number for number, stride in enumerate(strides)}
            stages = [last[stride] for stride in (4, 8, 16, 32) if stride in last]
            stages = stages if len(stages) == 4 else [-1]
        self.backbone, self.stages = backbone, list(stages)
        self.channels = [int(info[stage]["num_chs"]) for stage in self.stages]
        self.strides = [strides[stage] for stage in self.stages]

    def forward(self, images: Tensor) -> list[Tensor]:
        """See the class."""
        return self.backbone.maps(images, self.stages)


def make_maps(backbone: Backbone, options: MapOptions) -> VitMaps | StageMaps:
    """The maps of any backbone that has some."""
    if is_plain(backbone):
        return VitMaps(backbone, options)
    if options.window or options.relative or options.checkpoint:
        hint = "--window 0 --no-relative --no-checkpoint"
        raise UsageError(f"{backbone.spec.name}: {backbone.spec.arch} is no plain ViT: {hint}")
    return StageMaps(backbone)


def is_plain(backbone: Backbone) -> bool:
    """Whether it is a ViT of one stride, made of blocks."""
    return isinstance(backbone.model, VisionTransformer)


def quarters(backbone: Backbone) -> tuple[int, ...]:
    """The last block of each quarter of a plain ViT: 2, 5, 8, 11 of 12."""
    depth = len(getattr(backbone.model, "blocks", ()))
    return tuple(depth * part // 4 - 1 for part in range(1, 5))


def regions(x: Tensor, size: int) -> list[list[Tensor]]:
    """[B, h, w, D] -> rows of parts: what full windows of size x size cover, and what is left at the right and bottom.

    In each part all windows hold as many tokens: none of them is padding.
    """
    height, width = x.shape[1:3]
    rows, columns = ([part for part in (side // size * size, side % size) if part] for side in (height, width))
    return [list(band.split(columns, dim=2)) for band in x.split(rows, dim=1)]


def windows(x: Tensor, size: Grid) -> Tensor:
    """[B, h, w, D] -> [B * windows, tokens of a window, D], for sides of windows that divide h and w."""
    B, height, width, D = x.shape
    x = x.reshape(B, height // size[0], size[0], width // size[1], size[1], D)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size[0] * size[1], D)


def joined(x: Tensor, size: Grid, grid: Grid) -> Tensor:
    """The reverse of `windows` for a token grid (h, w)."""
    rows, columns = grid[0] // size[0], grid[1] // size[1]
    x = x.view(-1, rows, columns, *size, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(len(x), *grid, -1)


def _side_by_side(parts: list[Tensor], dim: int) -> Tensor:
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0]


def _index(number: int, depth: int, what: str) -> int:
    if not -depth <= number < depth:
        raise UsageError(f"{what}: there is no block {number}; the backbone has {depth}, counted from 0")
    return number % depth
