"""Our architectures, and variants of their parts, as models registered in timm: what `timm_tests.py` tests."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from typing import Any

import timm
from timm.models import generate_default_cfgs, register_model
from torch import nn

import backbones.vit  # noqa: F401  (registers them)
from backbones.archs import ARCHS

CONTROLS = ("test_vit", "deit_tiny_patch16_224", "volo_d1_224")
"models of timm's own: what they fail is not ours to mend"

_PARTS: dict[str, dict[str, Any]] = {
    "vit_tiny_stem_conv": {"stem": "conv"},
    "vit_tiny_stem_conv_gelu": {"stem": "conv_gelu"},
    "vit_tiny_stem_conv_srelu": {"stem": "conv_srelu"},
    "vit_tiny_stem_conv_ibn": {"stem": "conv_ibn"},
    "vit_tiny_stem_conv_ln": {"stem": "3Conv+3LN+3GELU+1Proj"},
    "vit_tiny_stem_proj_bn_relu": {"stem": "proj_bn_relu"},
    "vit_tiny_stem_xiao": {"stem": "xiao"},
    "vit_tiny_attention_relu": {"attention": "relu"},
    "vit_tiny_attention_gelu": {"attention": "gelu"},
    "vit_tiny_attention_softplus": {"attention": "softplus"},
    "vit_tiny_attention_identity": {"attention": "identity"},
    "vit_tiny_attention_sigmoid": {"attention": "sigmoid"},
    "vit_tiny_attention_relu_sum": {"attention": "relu_sum"},
    "vit_tiny_qk_norm": {"qk_norm": True},
    "vit_tiny_gate_silu": {"gate": "silu"},
    "vit_tiny_alpha_learned": {"attention": "relu", "alpha": "learned"},
    "vit_tiny_length_train": {"attention": "relu", "length": "train"},
    "vit_tiny_ffn_relu": {"ffn": "relu"},
    "vit_tiny_ffn_conv1d": {"ffn": "conv1d"},
    "vit_tiny_ffn_conv1d_bn": {"ffn": "conv1d_bn"},
    "vit_tiny_ffn_no_norm": {"ffn": "no_norm"},
    "vit_tiny_pool_gap": {"pool": "gap"},
    "vit_tiny_pool_mean": {"pool": "mean"},
    "vit_tiny_pos_sincos2d": {"pos": "sincos2d"},
    "vit_tiny_cls_pos_embed": {"cls_pos_embed": False},
    "vit_tiny_pre_logits": {"pre_logits": True},
    "vit_tiny_init_bigvision": {"init": "bigvision"},
    "volo_tiny_stem_conv": {"stem": "conv"},
    "volo_tiny_ffn_conv1d_bn": {"ffn": "conv1d_bn"},
}
VARIANTS = {
    # timm's tests want three blocks at least
    name: ({"depth": 3} if name.startswith("vit_") else {}) | options
    for name, options in _PARTS.items()
}
OURS = (*ARCHS, *VARIANTS)

default_cfgs = generate_default_cfgs({name: {"classifier": "head"} for name in VARIANTS})


def _register(name: str) -> Callable[..., nn.Module]:
    arch = name[: name.index("_tiny") + len("_tiny")]

    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        model: nn.Module = timm.model_entrypoint(arch)(pretrained, **(VARIANTS[name] | options))
        return model

    entry.__name__ = entry.__qualname__ = name
    return register_model(entry)


__all__: list[str] = []
for _name in VARIANTS:
    globals()[_name] = _register(_name)


def list_models(
    filter: str | Iterable[str] = "",
    module: str | Iterable[str] = "",
    pretrained: bool = False,
    exclude_filters: str | Iterable[str] = "",
    **_: Any,
) -> list[str]:
    """Return ours and the controls in place of all of timm's models: a function instead of `timm.list_models`."""
    wanted = [filter] if isinstance(filter, str) else [*filter]
    excluded = [exclude_filters] if isinstance(exclude_filters, str) else [*exclude_filters]
    names = [] if pretrained else [*OURS, *CONTROLS]
    names = [name for name in names if any(not pattern or fnmatch(name, pattern) for pattern in wanted)]
    return [name for name in names if not any(fnmatch(name, pattern) for pattern in excluded)]
