"""The places of a backbone at which tokens are measured.

Shapes: B images, n tokens, D channels, h x w grid.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from timm.models.vision_transformer import VisionTransformer
from timm.models.volo import VOLO, Outlooker
from torch import Tensor, nn

from backbones.backbone import Backbone
from transfer.core.errors import UsageError

ACTIVATION = re.compile(
    r"relu|elu|glu|silu|swish|mish|sigmoid|tanh|softplus|softsign|shrink|threshold|activation", re.IGNORECASE
)


@dataclass(frozen=True)
class HookPoint:
    """A module whose output is measured as a set of tokens; so is the input of an activation.

    Attributes:
        name: name of the place.
        kind: "activation" (within the stem), "stem", "positions", "outlooker", "downsampling", "block",
            "class attention" or "final norm".
        module: the module itself.
        prefix: number of tokens at the front that are no patches: class token, registers.
        channels_first: whether a map is [B, D, h, w] there, not [B, h, w, D]; None when not known.
    """

    name: str
    kind: str
    module: Any
    prefix: int = 0
    channels_first: bool | None = False

    def tokens(self, x: Tensor, class_token: bool) -> Tensor | None:
        """Return a map or a sequence at this place as [B, n, D]; None when it is neither, or its layout is not known.

        Args:
            x: output of the module.
            class_token: whether class token and registers are kept.
        """
        if x.ndim not in (3, 4) or (x.ndim == 4 and self.channels_first is None):
            return None
        if x.ndim == 4:
            x = x.flatten(2).mT if self.channels_first else x.flatten(1, 2)
        return x if class_token else x[:, self.prefix :]


def find_hook_points(backbone: Backbone) -> list[HookPoint]:
    """Return the places of a plain vision transformer or a VOLO; blocks are counted from 1, as in the paper's figure.

    Raises:
        UsageError: the backbone is neither.
    """
    model = backbone.model
    if isinstance(model, VisionTransformer):
        prefix = model.num_prefix_tokens
        blocks = [HookPoint(f"block {index + 1}", "block", block, prefix) for index, block in enumerate(model.blocks)]
        stem = HookPoint("stem", "stem", model.patch_embed)
        positions = HookPoint("positions", "positions", model.norm_pre, prefix)
        points = [*stem_activations(model.patch_embed), stem, positions, *blocks]
        norm = HookPoint("final norm", "final norm", model.norm, prefix)
        return points if isinstance(model.norm, nn.Identity) else [*points, norm]
    if isinstance(model, VOLO):
        stem = HookPoint("stem", "stem", model.patch_embed, channels_first=True)
        return [*stem_activations(model.patch_embed), stem, *_volo_points(model)]
    fault = "is neither a plain vision transformer nor VOLO: its token layout is unknown"
    raise UsageError(f"backbone {backbone.spec.name}: {backbone.spec.arch} {fault}")


def stem_activations(stem: nn.Module) -> list[HookPoint]:
    """Return the activations among the modules of a stem, known by the names of their classes."""
    # they work on the last dimension, so that maps around them may be [B, h, w, D]
    linear = [module for module in stem.modules() if isinstance(module, nn.Linear | nn.LayerNorm)]
    mixed = any(not type(module).__name__.endswith("2d") for module in linear)
    return [
        HookPoint(f"stem {name}", "activation", module, channels_first=None if mixed else True)
        for name, module in stem.named_modules()
        if is_activation(module)
    ]


def is_activation(module: nn.Module) -> bool:
    """Return whether a module is a point-wise function, by the name of its class."""
    return bool(ACTIVATION.search(type(module).__name__)) and not [*module.children()]


def _volo_points(model: VOLO) -> list[HookPoint]:
    """Return outlookers, downsampling convolution, positions, transformer blocks and blocks of class attention."""
    points: list[HookPoint] = []
    counts: Counter[str] = Counter()

    def add(kind: str, module: nn.Module, prefix: int = 0) -> None:
        counts[kind] += 1
        points.append(HookPoint(f"{kind} {counts[kind]}", kind, module, prefix))

    for index, stage in enumerate(model.network):
        if index == 2:
            points.append(HookPoint("positions", "positions", model.pos_drop))
        if not isinstance(stage, nn.Sequential):
            add("downsampling", stage)
            continue
        for block in stage:
            add("outlooker" if isinstance(block, Outlooker) else "block", block)
    prefix = 1 if model.post_network else 0
    for block in model.post_network or []:
        add("class attention", block, prefix)
    return [*points, HookPoint("final norm", "final norm", model.norm, prefix)]
