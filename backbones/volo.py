"""VOLO (arXiv 2106.13112) with exchangeable stem and FFN, registered in timm by importing this module.

Shapes: B images, h x w grid of the tokens after the first stage, N = h * w, D channels, C classes.
"""

from itertools import chain
from typing import Any

import torch
from timm.layers import Mlp
from timm.models import checkpoint
from timm.models._features import feature_take_indices
from timm.models.volo import VOLO as TimmVOLO
from timm.models.volo import Outlooker, Transformer
from torch import Tensor, nn

from backbones.archs import VOLOS, VOLOArch
from backbones.ffn import WITHOUT_NORM, ConvFFN, make_ffn
from backbones.positions import resample_positions
from backbones.stem_layers import StemEmbed, register_archs

__all__ = ["VOLO"]

FFN_REPLACED = (Outlooker, Transformer)
"""The kinds of blocks whose FFN `ffn` chooses: all but those of class attention. "Scaled ReLU Matters" (arXiv
2109.03810, Table 5) does not say which it replaced."""


class VOLO(TimmVOLO):
    """timm's VOLO, whose parameter names it keeps, with stem and FFN chosen by strings.

    The stem makes tokens at H / patch, outlookers work on them, a convolution halves the grid, positions are added,
    transformer blocks follow, then two blocks of class attention. Takes any H and W that twice the patch size divides;
    the position grid is resampled. Stochastic depth acts in the transformer blocks alone, as in the released code.

    Args:
        stem, ffn: names in `stems.py` and `ffn.py`, or `path/to/file.py:Name`. Only the FFNs of `FFN_REPLACED` change.
        pos_embed_interp: how positions are interpolated to another grid, see `positions.resample_positions`.
    """

    patch_embed: Any
    head: Any
    aux_head: Any

    def __init__(
        self,
        *,
        embed_dims: tuple[int, ...],
        stem: str = "patchify",
        ffn: str = "mlp",
        pos_embed_interp: str = "antialias",
        patch_size: int = 8,
        img_size: Any = 224,
        in_chans: int = 3,
        **options: Any,
    ) -> None:
        images = {"img_size": img_size, "patch_size": patch_size, "in_chans": in_chans}
        super().__init__(embed_dims=list(embed_dims), **images, **options)
        self.pos_embed_interp = pos_embed_interp
        self.patch_embed = StemEmbed(stem, embed_dim=embed_dims[0], flatten=False, strict_img_size=False, **images)
        for block in self._blocks_with_chosen_ffn():
            layer = make_ffn(ffn, block.mlp.fc1.in_features, block.mlp.fc1.out_features)
            block.mlp = layer if isinstance(layer, Mlp | ConvFFN) else FlattenedFFN(layer)
            block.mlp.apply(self._init_weights)
            if ffn in WITHOUT_NORM:
                block.norm2 = nn.Identity()

    def _blocks_with_chosen_ffn(self) -> list[Any]:
        stages: list[Any] = [stage for stage in self.network if isinstance(stage, nn.Sequential)]
        return [block for block in chain(*stages, self.post_network or ()) if isinstance(block, FFN_REPLACED)]

    def forward_tokens(self, x: Tensor) -> Tensor:
        """Map the stem's [B, 2h, 2w, D'] to tokens [B, N, D] before the class attention."""
        return self._stages(x)[-1].flatten(1, 2)

    def dense_logits(self, images: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of the two classifiers: [B, C] of the class token and [B, N, C] of the patch tokens.

        Tokens are mixed (arXiv 2104.10858, section 3.2): within the box, image i has the stem's tokens of image
        B - 1 - i. The patch tokens' outputs are put back to the images they come from, so that they belong to the
        labels of image i; the class token sees the mixture.

        Args:
            images: [B, C, H, W], normalised.
            box: [4], (top, left, bottom, right) on the h x w grid, the last two excluded; see `random_box`.
        """
        x = self.patch_embed(images).permute(0, 2, 3, 1)
        h, w = x.shape[1] // self.pooling_scale, x.shape[2] // self.pooling_scale
        tokens = self.norm(self.forward_cls(self.forward_tokens(_swap_box(x, self.pooling_scale * box))))
        dense = self.aux_head(tokens[:, 1:]).unflatten(1, (h, w))
        return self.head(tokens[:, 0]), _swap_box(dense, box).flatten(1, 2)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return maps [B, D, h, w] after the stages of these indices, as timm's method does, and the final tokens.

        With `stop_early` the tokens [B, N, D] of the last stage that ran replace the final ones.
        """
        if output_fmt != "NCHW":
            raise ValueError(f"maps come as NCHW, not {output_fmt}")
        wanted, last = feature_take_indices(len(self.stage_ends), indices)
        outputs = self._stages(self.patch_embed(x).permute(0, 2, 3, 1), last + 1 if stop_early else None)
        maps = [outputs[i] for i in wanted]
        maps = [(self.norm(x) if norm and i > 0 else x).permute(0, 3, 1, 2) for i, x in zip(wanted, maps)]
        if intermediates_only:
            return maps
        final = outputs[-1].flatten(1, 2)
        if len(outputs) < sum(end < len(self.network) for end in self.stage_ends):
            return final, maps
        return self.norm(final if self.post_network is None else self.forward_cls(final)), maps

    def _stages(self, x: Tensor, most: int | None = None) -> list[Tensor]:
        """Return maps [B, h, w, D] after each stage."""
        if any(side % self.pooling_scale for side in x.shape[1:3]):
            raise ValueError(f"a map of {x.shape[1]} x {x.shape[2]} tokens (h x w) cannot be halved")
        outputs = []
        for index, stage in enumerate(self.network):
            if index == 2:  # after the outlookers and the downsampling
                x = self.pos_drop(x + resample_positions(self.pos_embed, x.shape[1:3], self.pos_embed_interp))
            x = checkpoint(stage, x) if self.grad_checkpointing else stage(x)
            if index in self.stage_ends:
                outputs.append(x)
            if len(outputs) == most:
                break
        return outputs


class FlattenedFFN(nn.Module):
    """An FFN of tokens [B, N, D] applied to a map [B, h, w, D]."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1, 2)).view(x.shape)


def random_box(height: int, width: int) -> Tensor:
    """Draw a box [4] of the h x w grid as CutMix does (arXiv 1905.04899, appendix): area uniform in [0, 1], then cut at
    the edges.

    Takes its random numbers from torch's CPU generator. A compiled graph gets the box from outside: drawn within, its
    numbers would break the graph.
    """
    side = float(torch.rand(())) ** 0.5
    rows, columns = int(side * height), int(side * width)
    y, x = int(torch.randint(height, ())), int(torch.randint(width, ()))
    top, left = max(y - rows // 2, 0), max(x - columns // 2, 0)
    return torch.tensor([top, left, min(y + rows // 2, height), min(x + columns // 2, width)])


def _swap_box(x: Tensor, box: Tensor) -> Tensor:
    """Return [B, h, w, D] with the contents of the box taken from the batch in reverse."""
    top, left, bottom, right = box
    rows = torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
    columns = torch.arange(x.shape[2], device=x.device).view(1, -1, 1)
    within = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return torch.where(within, x.flip(0), x)


def _sizes(arch: VOLOArch) -> dict[str, Any]:
    first = (True,) + (False,) * (len(arch.depths) - 1)
    sizes = {"layers": arch.depths, "embed_dims": arch.dims, "num_heads": arch.heads}
    return {**sizes, "downsamples": first, "outlook_attention": first}


register_archs(
    VOLO,
    {name: _sizes(arch) for name, arch in VOLOS.items()},
    lambda options: len(options["layers"]) - 1,
    {"crop_pct": 0.96, "classifier": ("head", "aux_head")},
)
