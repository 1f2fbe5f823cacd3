"""Modules of the stems described in `stems.py`.

Shapes: B images, H x W pixels, D channels, p patch size.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from timm.layers import LayerNorm2d, PatchEmbed
from timm.layers.format import nchw_to
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from backbones.initialisation import contract, make_users, shape_or_type
from backbones.positions import fit_positions, source_grid
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD
from backbones.stems import ConvLayer, find_stem
from transfer.core import user_code
from transfer.core.errors import UserError
from transfer.core.exports import image_size, with_copies


class ScaledReLU(nn.Module):
    """beta * max(x + alpha, 0) with alpha and beta learned per channel (arXiv 2109.03810, section 3)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels, 1, 1))
        self.beta = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.beta * torch.relu(x + self.alpha)


class IBN(nn.Module):
    """Instance norm on half of the channels, batch norm on the others (arXiv 1807.09441; in stems 2111.12084)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.instances = channels // 2
        # the names of TransReID-SSL's released weights
        self.IN = nn.InstanceNorm2d(self.instances, affine=True)
        self.BN = nn.BatchNorm2d(channels - self.instances)

    def forward(self, x: Tensor) -> Tensor:
        first, rest = x.split([self.instances, x.shape[1] - self.instances], dim=1)
        return torch.cat([self.IN(first), self.BN(rest)], dim=1)


_MODULES: dict[str, Callable[[int], nn.Module]] = {
    "BN": nn.BatchNorm2d,
    "LN": LayerNorm2d,
    "IBN": IBN,
    "ReLU": lambda channels: nn.ReLU(inplace=True),
    "GELU": lambda channels: nn.GELU(),
    "SReLU": ScaledReLU,
}


def _row(layer: ConvLayer, bias: bool) -> list[nn.Module]:
    """Return a convolution and what follows it."""
    convolution = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding, bias=bias)
    return [convolution, *(_MODULES[name](layer.outputs) for name in (layer.norm, layer.activation) if name)]


class StemEmbed(PatchEmbed):
    """timm's patch embedding with any stem: images [B, C, H, W] -> tokens [B, H/p, W/p, D] (or as `output_fmt` says).

    Parameter names are timm's for the patchify stem (`proj`), and VOLO's and TransReID-SSL's for the full one
    (`conv.0`, ..., `proj`). A user's stem is a class `Name(dim, patch)` mapping [B, C, H, W] -> [B, D, H/p, W/p], kept
    in `conv`.
    """

    conv: Any
    proj: Any
    post: nn.Module

    def __init__(self, stem: str, *, patch_size: int, embed_dim: int, in_chans: int = 3, **options: Any) -> None:
        super().__init__(patch_size=patch_size, embed_dim=embed_dim, in_chans=in_chans, **options)
        self.embed_dim = embed_dim
        self.user = stem if user_code.is_user_part(stem) else ""
        self.post = nn.Identity()
        if self.user:
            self.conv = make_users("stem", stem, embed_dim, patch_size, in_chans=in_chans)
            self.proj = nn.Identity()
            return
        layers, bias = find_stem(stem).layers(embed_dim, patch_size, in_chans), self.proj.bias is not None
        self.conv, self.proj, self.post = _modules(layers, bias)

    def forward(self, x: Tensor) -> Tensor:
        images, (height, width), (rows, columns) = x, x.shape[-2:], self.patch_size
        if height % rows or width % columns:
            raise ValueError(f"an image of {height} x {width} pixels (H x W) is not divided by the patch size {rows}")
        if not self.user and len(self.conv):
            x = x.contiguous(memory_format=torch.channels_last)  # convolutions are up to a third faster so
        maps = self.post(self.proj(self.conv(x)))
        expected = [images.shape[0], self.embed_dim, height // rows, width // columns]
        if self.user and list(getattr(maps, "shape", ())) != expected:
            fault = f"got {shape_or_type(maps)} instead of {expected} for {shape_or_type(images)}"
            raise UserError(f"{contract('stem', self.user)}; {fault}")
        tokens = maps.flatten(2).transpose(1, 2) if self.flatten else nchw_to(maps, self.output_fmt)
        return self.norm(tokens)


def _filter_state(state: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Resample the positions of an exported folder that timm loads at another image size; timm calls this."""
    size = image_size({"model_args": model.pretrained_model_args})
    return fit_positions(state, model, source_grid(state, model, size))


def register_archs(
    model: type[nn.Module],
    sizes: dict[str, dict[str, Any]],
    last_map: Callable[[dict[str, Any]], int],
    config: dict[str, Any],
) -> None:
    """Register architectures with stems in timm, as functions of the module of their class.

    Args:
        sizes: name -> arguments of the class.
        last_map: the arguments -> the index of the feature map that timm returns by default.
        config: entries of timm's `pretrained_cfg`.
    """
    module: Any = sys.modules[model.__module__]
    # the convolution of the stem "patchify"; others say theirs when they are made
    config |= {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "interpolation": "bicubic", "first_conv": "patch_embed.proj"}
    module.default_cfgs = generate_default_cfgs({name: {"architecture": name, **config} for name in sizes})

    def make(name: str, pretrained: bool = False, device: Any = None, dtype: Any = None, **options: Any) -> nn.Module:
        options = sizes[name] | configured(options)
        features = {"out_indices": options.pop("out_indices", last_map(options)), "feature_cls": "getter"}
        ways: dict[str, Any] = {"pretrained_filter_fn": _filter_state, "feature_cfg": features}
        with nullcontext() if device is None else torch.device(device):  # users' parts take neither of the two
            built = build_model_with_cfg(model, name, pretrained, **ways, **options)
        return built.to(dtype=dtype)

    for name in sizes:
        entry: Any = partial(make, name)
        entry.__name__, entry.__module__ = name, model.__module__
        setattr(module, name, register_model(entry))


def configured(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a timm model whose configuration names the first convolution of its stem; user's parts
    are those of the export that it is built from, see `with_copies`.

    timm adapts the pretrained weights of that layer to images of other than 3 channels. A user's stem names none.
    """
    options = with_copies(options)
    stem = options.get("stem", "patchify")
    if user_code.is_user_part(stem):
        return options
    layer = "conv.0" if len(find_stem(stem).norms) > 1 else "proj"
    overlay = {"first_conv": f"patch_embed.{layer}"} | (options.get("pretrained_cfg_overlay") or {})
    return options | {"pretrained_cfg_overlay": overlay}


def _modules(layers: list[ConvLayer], bias: bool) -> list[nn.Module]:
    """Return what stands before the projection, the projection and what follows it.

    Args:
        layers: the projection last.
        bias: whether the projection has one.
    """
    # no bias before the projection: the paper's rows without BN differ from those with it in nothing but the norm
    *before, (projection, *after) = [_row(layer, bias and layer is layers[-1]) for layer in layers]
    return [nn.Sequential(*chain(*before)), projection, nn.Sequential(*after) if after else nn.Identity()]
