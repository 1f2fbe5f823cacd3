"""Attention as functions of queries, keys and values: softmax, and the point-wise family of arXiv 2309.08586.

Shapes: B images, N query tokens, L key tokens, d = head_dim; q, k, v are [B, heads, N or L, d].
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backbones.kernels.blocked import scaled_matmul, split_factor
from backbones.kernels.operator import attend

# In place where the gradient needs the output alone: nothing else holds the L x L scores.
SCORE_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu_,
    "relu2": lambda scores: F.relu_(scores).square(),
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "softplus": F.softplus,
    "identity": lambda scores: scores,
    "relu6": lambda scores: F.relu6(scores, inplace=True),
    "sigmoid": torch.sigmoid_,
}
_MAY_BE_NEGATIVE = ("gelu", "gelu_tanh", "identity")
# Bytes of scores up to which a CPU is faster with torch's own operations; for training, where they keep the scores for
# the backward pass, by what it costs to compute h again.
_FEW_SCORE_BYTES = 3e6
_FEW_SCORE_BYTES_IN_TRAINING = dict.fromkeys(SCORE_FUNCTIONS, 16e6) | {"relu": 3e6, "relu2": 4e6, "softplus": 32e6}


def pointwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    h: str = "relu",
    alpha: float | Tensor = 1.0,
    length: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return point-wise attention L^-alpha h(q k^T / sqrt(d)) v (arXiv 2309.08586, section 3), in memory linear in N
    and L.

    Args:
        q, k, v: [B, heads, N, d], [B, heads, L, d], [B, heads, L, d]; values may be of another width than d.
        h: relu, relu2, gelu, gelu_tanh, softplus, identity, relu6 or sigmoid. gelu is the exact one, as in the public
            function of a co-author (open_lm's custom_attn); gelu_tanh is flax's default approximation of it. The paper
            does not say which is meant.
        alpha: exponent of the length; a scalar tensor may require gradients.
        length: L of the factor L^-alpha; None: the number of keys.
        scale: in place of 1 / sqrt(d).

    Returns:
        As wide as the values [B, heads, N, d], under autocast in its precision. Zeros where there are no keys.

    Raises:
        ValueError: tensors that do not fit each other, or a length below 1.
    """
    q, k, v = checked_qkv(q, k, v)
    if length is not None and length < 1:
        raise ValueError(f"length = {length} is not a number of tokens")
    keys = max(k.shape[-2], 1)
    # a learned exponent acts on the outputs, from 1 / L on, so that no precision is left on the way
    factor: float = float(length or keys) ** -(1.0 if isinstance(alpha, Tensor) else alpha)
    with without_autocast(q):
        out = _weighted_sums(q, k, v, h, factor, score_scale(q, scale))
        if not isinstance(alpha, Tensor):
            return out
        # NaN where alpha is not finite; in float32 or above, so that the factor's gradient is not a sum of halves
        rest = float(length or keys) ** (1.0 - alpha) + 0 * alpha
        return (out.to(wide_type(out)) * rest).to(out.dtype)


def _weighted_sums(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float) -> Tensor:
    """Return factor * h(scale q k^T) v, computed in the fastest way."""
    if h == "identity" and _linear_is_cheaper(q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]):
        summary = scaled_matmul(k.flatten(0, 1).mT, v.flatten(0, 1), factor)
        return scaled_matmul(q.flatten(0, 1), summary, scale).unflatten(0, q.shape[:2])
    if _prefers_torch_operations(q, k, v, h):
        scale, outer = split_factor(h, factor, scale)
        return _weighted_values(SCORE_FUNCTIONS[h](_scores(q, k, scale)), v, outer)
    if q.device.type == "cpu":
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # here, so that the backward pass has them so too
    return attend(q, k, v, h, factor, scale)


def _prefers_torch_operations(q: Tensor, k: Tensor, v: Tensor, h: str) -> bool:
    """Return whether torch's own operations are faster (few scores on a CPU) or needed: for an exported graph, which
    then needs none of this suite and holds for every batch.
    """
    if torch.compiler.is_exporting():
        return True
    trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * q.element_size()
    return q.device.type == "cpu" and scores <= (_FEW_SCORE_BYTES_IN_TRAINING[h] if trains else _FEW_SCORE_BYTES)


def _linear_is_cheaper(queries: int, keys: int, width: int, of_values: int) -> bool:
    """Return whether q (k^T v) takes fewer operations than (q k^T) v, which it equals for h = identity."""
    return (queries + keys) * width * of_values < queries * keys * (width + of_values)


def normalised_pointwise(q: Tensor, k: Tensor, v: Tensor, *, h: str = "relu", scale: float | None = None) -> Tensor:
    """Return point-wise attention whose weights are divided by the sum of their absolute values over the keys.

    For the h that are never negative the weights so sum to 1. A row without any weight gives 0. L^-alpha would cancel.
    The N x L weights are kept for the backward pass.
    """
    q, k, v = checked_qkv(q, k, v)
    with without_autocast(q):
        # a factor that keeps float16 from overflowing, and cancels; the sums in float32 at least
        scale, outer = split_factor(h, 1 / max(k.shape[-2], 1), score_scale(q, scale))
        weights = SCORE_FUNCTIONS[h](_scores(q, k, scale))
        total = (weights.abs() if h in _MAY_BE_NEGATIVE else weights).sum(-1, dtype=wide_type(q)) * outer
        return divide_by_totals(_weighted_values(weights, v, outer), total.view(*q.shape[:-1], 1))


def wide_type(x: Tensor) -> torch.dtype:
    """Return the type of sums of values like these, float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def divide_by_totals(weighted: Tensor, total: Tensor) -> Tensor:
    """Return sums divided by their total weights, in the type of the sums; 0 where the weights add up to nothing."""
    return (weighted / total.clamp_min(torch.finfo(total.dtype).tiny)).to(weighted.dtype)


def softmax(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v, by torch's fused kernel unless that is slower.

    Args:
        scale: in place of 1 / sqrt(d).
    """
    q, k, v = checked_qkv(q, k, v)
    short = q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] <= 1024
    if short and (torch.compiler.is_compiling() or not torch.is_inference_mode_enabled()):
        # a compiled graph, which the second question would break, trains
        # the fused kernel's backward is slow there: 54 ms a block against 19 at 129 tokens (ViT-S, 16 images, a core);
        # its forward alone is not: 3.9 ms against 7.8 at 197 tokens (two cores)
        with without_autocast(q):
            return _weighted_values(_scores(q, k, score_scale(q, scale)).softmax(-1), v)
    e = v.shape[-1]
    v = F.pad(v, (0, q.shape[-1] - e)) if e < q.shape[-1] else v  # the fused kernels want one width
    return F.scaled_dot_product_attention(q, k, v, scale=scale)[..., :e]


def score_scale(q: Tensor, scale: float | None) -> float:
    """Return the scale of the scores: the one given, or 1 / sqrt(d)."""
    return q.shape[-1] ** -0.5 if scale is None else scale


def checked_qkv(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v, in autocast's precision where it is on. Raises ValueError if they do not fit each other."""
    if (
        q.ndim != 4
        or k.shape[:-1] != v.shape[:-1]
        or q.shape[:2] != k.shape[:2]
        or q.shape[3:] != k.shape[3:]
        or not q.shape[3]
    ):
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"q, k, v are [B, heads, N, d], [B, heads, L, d], [B, heads, L, d], not {shapes}")
    device = q.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        return q.to(dtype), k.to(dtype), v.to(dtype)
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v are of different types, without autocast: {q.dtype}, {k.dtype}, {v.dtype}")
    return q, k, v


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would compute norms, and softplus on N x L scores, in fp32."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return scale q k^T, [B * heads, N, L]; the scale within the product costs no pass of its own."""
    return scaled_matmul(q.flatten(0, 1), k.flatten(0, 1).mT, scale)


def _weighted_values(weights: Tensor, v: Tensor, factor: float = 1.0) -> Tensor:
    """Return factor * weights v for weights [B * heads, N, L] and values [B, heads, L, d], as [B, heads, N, d].

    The factor acts before the sums are rounded, and on the N x d outputs alone, never on the N x L weights.
    """
    return scaled_matmul(weights, v.flatten(0, 1), factor).unflatten(0, v.shape[:2])
