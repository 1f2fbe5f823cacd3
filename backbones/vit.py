"""Plain vision transformers with exchangeable stem, attention and FFN, registered in timm by importing this module.

Shapes: B images, H x W pixels, N tokens (class token included), D channels, h x w token grid.
"""

from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.models import load_state_dict, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import backbones.volo  # noqa: F401  (registers it too, so that one import is enough to rebuild any export)
from backbones.archs import POOLS, VITS
from backbones.attention import Attention, make_attention
from backbones.ffn import WITHOUT_NORM, make_ffn
from backbones.initialisation import big_vision, make_users_model
from backbones.positions import add_positions, resize_positions, sincos2d
from backbones.spec import default_qk_norm, sides
from backbones.stem_layers import StemEmbed, register_archs
from backbones.token_shards import Shards
from backbones.weights.classifier import SEPARATE_HEAD
from backbones.weights.export import export
from transfer.core.errors import UsageError
from transfer.core.exports import USERS_MODEL, WEIGHTS, with_copies

__all__ = ["ViT", "export"]

# options of timm's that act inside the parts which are replaced here, and would be lost
_NOT_OURS = {"attn_drop_rate", "proj_drop_rate", "act_layer", "qkv_bias", "proj_bias"}
_NOT_OURS |= {"scale_attn_norm", "scale_mlp_norm", "device", "dtype"}


class ViT(VisionTransformer):
    """timm's VisionTransformer, whose parameter names it keeps, with parts chosen by strings and numbers.

    Takes any H and W that the patch size divides; the position grid is resampled.

    Args:
        stem, attention, ffn: names in `stems.py`, `attention.py`, `ffn.py`, or `path/to/file.py:Name`.
        pool: "cls"; "gap": mean over the tokens of a model without class token; "mean": over the patch tokens of a
            model with one. The final norm stands before the pooling in all three. timm's `global_pool` among the
            options has precedence; "" leaves all tokens.
        pos: "learned", or "sincos2d", fixed (MoCo v3's form).
        pos_embed_interp: how positions are interpolated to another grid, see `positions.resample_positions`.
        cls_pos_embed: False adds the positions before the class token joins, which then has none.
        pre_logits: a dense layer and tanh behind the pooling, whose output is the representation (big_vision).
        init: "deit" or "bigvision", see `init_weights`.
        qk_norm, gate, alpha, length: options of `attention.Attention`; `qk_norm=None`: as `spec.default_qk_norm` says.
        train_size: (H, W) in pixels at pretraining, whose token count is L with `length="train"`.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        depth: int,
        num_heads: int,
        stem: str = "patchify",
        attention: str = "softmax",
        ffn: str = "mlp",
        patch_size: int = 16,
        pool: str = "cls",
        pos: str = "learned",
        pos_embed_interp: str = "antialias",
        cls_pos_embed: bool = True,
        pre_logits: bool = False,
        init: str = "deit",
        qk_norm: bool | None = None,
        gate: str = "off",
        alpha: float | str = 1.0,
        length: str = "tokens",
        train_size: int | tuple[int, int] = 224,
        img_size: int | tuple[int, int] = 224,
        **options: Any,
    ) -> None:
        for option in options.keys() & _NOT_OURS:
            raise TypeError(f"`{option}` does not reach the exchangeable parts of this model")
        parts = {"embed_layer": partial(StemEmbed, stem), "mlp_layer": partial(_make_ffn, ffn)}
        options = _timm_options(pool, cls_pos_embed) | parts | options
        super().__init__(img_size, patch_size, embed_dim=embed_dim, depth=depth, num_heads=num_heads, **options)
        height, width = sides(train_size)
        train_tokens = (height // patch_size) * (width // patch_size) + self.num_prefix_tokens
        self.pos, self.init, self.pos_embed_interp = pos, init, pos_embed_interp
        # always, so that a seed draws the same other weights
        dense = nn.Sequential(OrderedDict(fc=nn.Linear(embed_dim, embed_dim), act=nn.Tanh()))
        self.pre_logits = dense if pre_logits else nn.Identity()
        qk_norm = default_qk_norm(attention) if qk_norm is None else qk_norm
        scaled: dict[str, Any] = {"alpha": alpha, "length": length, "train_tokens": train_tokens}
        make = partial(make_attention, attention, embed_dim, num_heads, qk_norm=qk_norm, gate=gate, **scaled)
        for block in self.blocks:
            # after the fact, because timm takes a class for the attention and passes it no options of ours
            block.attn = make()
            if ffn in WITHOUT_NORM:
                block.norm2 = nn.Identity()
        self.weight_init_mode = ""
        self.init_weights()

    _pos_embed = add_positions
    set_input_size = resize_positions

    def init_weights(self, mode: str = "", needs_reset: bool = False) -> None:
        """Initialise as DeiT: truncated normal (0.02) for linear layers, positions, class token; torch's own for
        convolutions.

        Or as big_vision, see `initialisation.py`. What else stem, attention and FFN have keeps its values.
        """
        if self.init == "bigvision":
            big_vision(self)
        else:
            super().init_weights(mode, needs_reset)
            if self.cls_token is not None:
                trunc_normal_(self.cls_token, std=0.02)
        if self.pos == "sincos2d":
            height, width = self.patch_embed.grid_size
            grid = sincos2d(height, width, self.embed_dim)
            prefix = 0 if self.no_embed_class else self.num_prefix_tokens
            first = torch.zeros(prefix, self.embed_dim)  # the class token gets no position
            table = torch.cat([first, grid])[None].to(self.pos_embed)
            self.pos_embed = nn.Parameter(table, requires_grad=False)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return pooled features [B, D] of tokens [B, N, D], or the classifier's outputs [B, C]."""
        x = self.pre_logits(super().forward_head(x, pre_logits=True))
        return x if pre_logits else self.head(x)


def _timm_options(pool: str, cls_pos_embed: bool) -> dict[str, Any]:
    """Return the options of timm's class in which ours differ from its defaults."""
    pooling = {"global_pool": POOLS[pool], "class_token": pool != "gap"}
    norms = {"fc_norm": False, "norm_layer": partial(nn.LayerNorm, eps=1e-6)}
    others = {"no_embed_class": not cls_pos_embed, "weight_init": "skip", "dynamic_img_size": True}
    return {**pooling, **norms, **others}


def _make_ffn(ffn: str, in_features: int, hidden_features: int, **_: Any) -> nn.Module:
    """Return the FFN of a block; timm calls this with options of its own."""
    return make_ffn(ffn, in_features, hidden_features)


register_archs(
    ViT,
    {name: {"embed_dim": arch.dim, "depth": arch.depth, "num_heads": arch.heads} for name, arch in VITS.items()},
    lambda options: min(3, options["depth"]),
    {"crop_pct": 0.875, "classifier": "head"},
)


@register_model
def users_model(pretrained: bool = False, **options: Any) -> Any:
    """Return a user's whole model without a classifier, from the file that an export of it names and has a copy of.

    Args:
        pretrained: load the weights of the export.
        options: `arch`, as `path/to/file.py:Name`, and `in_chans`; timm adds the place of the export.
    """
    options = with_copies(options)
    model = make_users_model(options["arch"], options.get("in_chans", 3))
    model.pretrained_cfg = {**options["pretrained_cfg"], "architecture": USERS_MODEL}
    if pretrained:
        state = load_state_dict(str(Path(options["pretrained_cfg"]["file"], WEIGHTS)))
        model.load_state_dict({name: state[name] for name in state if not name.startswith(f"{SEPARATE_HEAD}.")})
    return model


def share_tokens(model: nn.Module, shards: Shards) -> None:
    """Make the blocks of a plain ViT work on their rank's tokens while it trains; in evaluation each rank has all
    tokens.

    Raises:
        UsageError: blocks that mix tokens outside this suite's attention.
    """
    blocks = attach_shards(model, shards)

    def split(block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (shards.split(inputs[0]), *inputs[1:]) if block.training else inputs

    def join(block: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return output if shards.tokens is None else shards.join(output)

    blocks[0].register_forward_pre_hook(split)
    blocks[-1].register_forward_hook(join)


def attach_shards(model: nn.Module, shards: Shards) -> list[Any]:
    """Give the ranks to the attention of a plain ViT and return its blocks. Raises as `share_tokens` does."""
    blocks: list[Any] = list(model.blocks) if isinstance(model, VisionTransformer) else []
    if not blocks or not all(isinstance(block.attn, Attention) for block in blocks):
        raise UsageError("--sequence-parallel: only plain ViTs whose attention is of this suite share their tokens")
    for block in blocks:
        if any(isinstance(part, _BatchNorm) for part in block.modules()):
            raise UsageError("--sequence-parallel: a batch norm within the blocks would see this rank's tokens alone")
        if not block.attn.attends_by_query():
            raise UsageError("--sequence-parallel: an attention of which a query's result depends on other queries")
        block.attn.shards = shards
    return blocks
