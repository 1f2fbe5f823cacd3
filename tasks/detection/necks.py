"""Pyramids from maps of one stride: ViTDet's simple one, and the four-level one from intermediate blocks.

Shapes: D channels of the backbone, C of the pyramid.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from backbones.errors import UsageError

STRIDES = (4, 8, 16, 32)
"""Strides of the pyramid's levels that are computed from the backbone's maps, in pixels."""


def scales(stride: int) -> list[float]:
    """Return the factors that bring a map of this stride to `STRIDES`.

    Raises:
        UsageError: the stride is not 4, 8 or 16.
    """
    if stride not in (4, 8, 16):
        raise UsageError(f"maps of stride {stride}: pyramids are made from patches of 4, 8 and 16 pixels")
    return [stride / target for target in STRIDES]


def rescale(dim: int, factor: float) -> tuple[nn.Module, int]:
    """Return a module that scales a map of D channels by 4, 2, 1, 1/2, 1/4 ..., and its number of output channels.

    As in ViTDet (arXiv 2203.16527, section 3): strided deconvolutions upwards, with a norm between two; max pooling
    downwards.
    """
    if factor == 4:
        first, second = nn.ConvTranspose2d(dim, dim // 2, 2, 2), nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2)
        return nn.Sequential(first, LayerNorm2d(dim // 2), nn.GELU(), second), dim // 4
    if factor == 2:
        return nn.ConvTranspose2d(dim, dim // 2, 2, 2), dim // 2
    return (nn.Identity() if factor == 1 else nn.MaxPool2d(round(1 / factor))), dim


class _Level(nn.Module):
    """One level: rescaled, then 1x1 and 3x3 convolutions with norms and without activation, to C channels."""

    def __init__(self, dim: int, factor: float, channels: int) -> None:
        super().__init__()
        self.scale, width = rescale(dim, factor)
        self.body = nn.Sequential(
            nn.Conv2d(width, channels, 1, bias=False),
            LayerNorm2d(channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            LayerNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.body(self.scale(x))
        return maps


class SimplePyramid(nn.Module):
    """ViTDet's pyramid: every level up to stride 32 from the last map alone, coarser ones by pooling the one before.

    Args:
        dim: D. stride: stride of the map, 4, 8 or 16. channels: C. strides: strides of the levels, rising.
    """

    def __init__(self, dim: int, stride: int, channels: int = 256, strides: Sequence[int] = (4, 8, 16, 32, 64)) -> None:
        super().__init__()
        factors = dict(zip(STRIDES, scales(stride)))
        self.levels = nn.ModuleList(_Level(dim, factors[level], channels) for level in strides if level in factors)
        self.pooled = len(strides) - len(self.levels)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the levels [B, C, ., .], one for each stride, of the last of the maps [B, D, h, w]."""
        levels = [level(maps[-1]) for level in self.levels]
        for _ in range(self.pooled):
            levels.append(F.max_pool2d(levels[-1], 1, 2))
        return tuple(levels)


class TapScales(nn.Module):
    """Maps of four blocks, normalised, brought to strides 4, 8, 16 and 32 for a feature pyramid network.

    As ViT-Adapter's and XCiT's baselines do (arXiv 2205.08534, 2106.09681).

    Args:
        dim: D. stride: stride of the maps, 4, 8 or 16.
    """

    def __init__(self, dim: int, stride: int) -> None:
        super().__init__()
        steps = [rescale(dim, factor) for factor in scales(stride)]
        self.norms = nn.ModuleList(LayerNorm2d(dim) for _ in steps)
        self.steps = nn.ModuleList(step for step, _ in steps)
        self.channels = [width for _, width in steps]

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return maps of strides 4, 8, 16, 32 with `channels`, of four maps [B, D, h, w]."""
        return [step(norm(x)) for step, norm, x in zip(self.steps, self.norms, maps, strict=True)]
