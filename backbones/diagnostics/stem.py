"""The last activation of a stem between the norm before it and the weights behind it (arXiv 2109.03810, theorem 1).

Shapes: C channels of the activation, D channels of the tokens. The theorem multiplies the ReLU's output by W_Q, W_K
and W_V directly; in the model the projection, positions and a layer norm stand between. Both readings of W_c are given.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.diagnostics.hook_points import is_activation
from backbones.diagnostics.statistics import correlations, penalty_weights

Calls = list[tuple[str, Any]]
IDLE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
"""Modules that return their input when nothing is trained."""


@torch.inference_mode()
def stem_facts(backbone: Backbone, images: Tensor) -> dict[str, Any]:
    """Return plain values about the norms of a stem and its last activation.

    `norms`: of each norm within the stem the mean, smallest and largest scale, shift and implied penalty weight.
    `last_activation`: None without one; else its name, that of the norm before it, by channel `scale`, `shift` and
    `penalty` (see `penalty_weights`), and `weights`: a list with, for each reading of W_c, the norms ||W_c||_2 and

        pearson, spearman: correlation of ||W_c|| with the penalty weight s_c; inverse_pearson, inverse_spearman: with
            1 / s_c.
        balance: 2 sum_c ||W_c|| s_c / sum_c (||W_c||^2 + s_c^2), at most 1, which is reached when ||W_c|| = s_c in
            every channel: where l2 decay of both brings them if nothing stands between norm and weights.
    `missing`: sentences about what cannot be measured.

    Args:
        backbone: backbone with the stem.
        images: [1, 3, H, W], to see in which order the modules of the stem are called.
    """
    order = call_order(backbone.model.patch_embed, backbone, images)
    norms = [{"norm": name, **_summary(module)} for name, module in order if is_norm(module)]
    places = [place for place, (_, module) in enumerate(order) if is_activation(module)]
    missing: list[str] = []
    last = _last_activation(backbone, order, places[-1], missing) if places else None
    return {"norms": norms, "last_activation": last, "missing": missing}


def call_order(stem: nn.Module, backbone: Backbone, images: Tensor) -> Calls:
    """Return the modules of a stem that have weights themselves, or no submodules, in the order of their calls."""
    order: Calls = []
    with ExitStack() as hooks:
        for name, module in stem.named_modules():
            if isinstance(module, IDLE) or ([*module.children()] and not [*module.parameters(recurse=False)]):
                continue
            hooks.enter_context(module.register_forward_pre_hook(lambda m, _, name=name: order.append((name, m))))
        backbone(images)
    return order


def is_norm(module: Any) -> bool:
    """Return whether a module is a norm with a scale and a shift for each channel."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    vectors = isinstance(weight, Tensor) and isinstance(bias, Tensor) and weight.ndim == 1
    return vectors and "norm" in type(module).__name__.lower()


def _summary(norm: Any) -> dict[str, Any]:
    values = {"scale": norm.weight, "shift": norm.bias, "penalty": penalty_weights(norm.weight, norm.bias)}
    return {
        name: {"mean": float(value.mean()), "smallest": float(value.min()), "largest": float(value.max())}
        for name, value in values.items()
    }


def _last_activation(backbone: Backbone, order: Calls, place: int, missing: list[str]) -> dict[str, Any]:
    name, _ = order[place]
    behind = order[place + 1 :]
    facts: dict[str, Any] = {"activation": name, "norm": None}
    penalty = None
    if place and is_norm(order[place - 1][1]):
        facts["norm"], norm = order[place - 1]
        penalty = penalty_weights(norm.weight, norm.bias)
        facts |= {"scale": norm.weight.tolist(), "shift": norm.bias.tolist(), "penalty": penalty.tolist()}
    else:
        lacks = "no norm with scale and shift directly before it"
        missing.append(f"stem {name}: {lacks}, so penalty weights are unavailable")
    readings = [*_following(backbone, behind, missing), *_attention(backbone, behind, missing)]
    facts["weights"] = [{"of": layer, "norm": norms.tolist()} | _compared(norms, penalty) for layer, norms in readings]
    return facts


def _following(backbone: Backbone, behind: Calls, missing: list[str]) -> Iterable[tuple[str, Tensor]]:
    """Return ||W_c|| [C] of the layer after the activation: the stem's, or the first block's W_Q, W_K, W_V."""
    layers = [(name, module) for name, module in behind if [*module.parameters(recurse=False)]]
    if layers:
        name, module = layers[0]
        weight = _matrix(module)
        if weight is None:
            kind = type(module).__name__
            missing.append(f"stem {name}: {kind} takes the last activation's channels, not by one matrix of weights")
            return []
        return [(f"stem {name}", column_norms(weight))]
    qkv = first_qkv(backbone)
    if qkv is None:
        missing.append("first block: its attention has no W_Q, W_K, W_V as one matrix")
        return []
    return [("first block's W_Q, W_K, W_V", column_norms(qkv))]


def _attention(backbone: Backbone, behind: Calls, missing: list[str]) -> Iterable[tuple[str, Tensor]]:
    """Return ||W_c|| [C] of the product of all linear maps from the activation to q, k and v of the first block.

    The layer norm counts by its scale and the subtraction of the mean, not by its division; positions and bias terms do
    not depend on the channel.
    """
    qkv, weights = first_qkv(backbone), [_matrix(module) for _, module in behind]
    if qkv is None or len(weights) > 1 or any(weight is None for weight in weights):
        missing.append("stem: the path from its last activation to the first attention is not a single linear map")
        return []
    norm = backbone.model.blocks[0].norm1
    scaled = qkv.double() * norm.weight.double()
    centred = scaled - scaled.mean(1, keepdim=True)
    if not weights:
        return [("through the layer norm to q, k, v", column_norms(centred))]
    projection = weights[0]
    assert projection is not None
    through = centred @ projection.double().flatten(1)
    return [("through projection and layer norm to q, k, v", column_norms(through.unflatten(1, projection.shape[1:])))]


def first_qkv(backbone: Backbone) -> Tensor | None:
    """Return W_Q, W_K, W_V [3 D, D] of the first block, one layer in timm; None without such a layer."""
    if not isinstance(backbone.model, VisionTransformer):
        return None
    block: Any = backbone.model.blocks[0]
    layer, norm = getattr(getattr(block, "attn", None), "qkv", None), getattr(block, "norm1", None)
    return layer.weight if isinstance(layer, nn.Linear) and isinstance(getattr(norm, "weight", None), Tensor) else None


def _matrix(module: Any) -> Tensor | None:
    """Return the weights [out, C, ...] of a linear layer or ungrouped convolution; None for other modules."""
    weight = getattr(module, "weight", None)
    matrix = isinstance(weight, Tensor) and weight.ndim >= 2 and getattr(module, "groups", 1) == 1
    return weight if matrix and not getattr(module, "transposed", False) else None


def column_norms(weight: Tensor) -> Tensor:
    """Return ||W_c||_2 [C] of weights [out, C, ...]."""
    return weight.double().transpose(0, 1).flatten(1).norm(dim=1)


def _compared(norms: Tensor, penalty: Tensor | None) -> dict[str, float | None]:
    if penalty is None:
        return {}
    direct, inverse = correlations(norms, penalty), correlations(norms, 1 / penalty)
    total = float((norms.square() + penalty.square()).sum())
    balance = 2 * float((norms * penalty).sum()) / total if total else None
    return direct | {f"inverse_{name}": value for name, value in inverse.items()} | {"balance": balance}
