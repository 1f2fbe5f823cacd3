"""`transfer::pointwise`: point-wise attention as one operator of torch, with its gradient, shapes and operations.

Autograd, `torch.compile`, activation checkpointing and FLOP counters see this operator alone, whichever way it is
computed: by `fused.py` on a CUDA GPU, by `blocked.py` everywhere else.
"""

import importlib.util
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from backbones.kernels import blocked


@torch.library.custom_op("transfer::pointwise", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float) -> Tensor:
    """factor * h(q k^T / sqrt(d)) v; `factor` as given, and no cast.

    Args:
        q, k, v: [B, heads, N, d], [B, heads, L, d], [B, heads, L, d], of one type and device.
        h: a name of `blocked.FORMS`.

    Returns:
        [B, heads, N, d].
    """
    if not (q.numel() and k.numel()):
        return _empty(q).zero_()
    kernels = _kernels(q)
    if kernels is not None:
        return kernels.forward(q, k, v, h, factor)
    return blocked.forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), h, factor).view(q.shape)


@torch.library.custom_op("transfer::pointwise_backward", mutates_args=())
def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, h: str, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `attend` for q, k and v."""
    if not (q.numel() and k.numel()):
        return _empty(q).zero_(), _empty(k).zero_(), _empty(v).zero_()
    kernels = _kernels(q)
    if kernels is not None:
        return kernels.backward(grad, q, k, v, h, factor)
    flat = grad.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    dq, dk, dv = blocked.backward(*flat, h, factor)
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def _empty(x: Tensor) -> Tensor:
    """As x [B, heads, N, d] in shape, and in memory as what computes on its device leaves it.

    The kernels have a token's heads side by side, as projections read and write them; blocks have them one by one.
    """
    kernels = _kernels(x)
    empty: Tensor = x.new_empty(x.shape) if kernels is None else kernels.empty_output(x)
    return empty


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float) -> Tensor:
    return _empty(q)


@attend_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, h: str, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(q), _empty(k), _empty(v)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, ctx.h, ctx.factor = inputs
    ctx.save_for_backward(q, k, v)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *attend_backward(grad, *ctx.saved_tensors, ctx.h, ctx.factor), None, None


attend.register_autograd(_gradients, setup_context=_remember)


def operations(q: tuple[int, ...], k: tuple[int, ...]) -> int:
    """Of the two products, from the shapes [B, heads, N, d] and [B, heads, L, d]; a multiply-add is two."""
    return 4 * q[0] * q[1] * q[2] * k[2] * q[3]


@register_flop_formula(torch.ops.transfer.pointwise)
def _forward_operations(q: Any, k: Any, *_: Any, **__: Any) -> int:
    return operations(q, k)


@register_flop_formula(torch.ops.transfer.pointwise_backward)
def _backward_operations(grad: Any, q: Any, k: Any, *_: Any, **__: Any) -> int:
    return operations(q, k) * 5 // 2  # five products; what is computed twice counts once


def _kernels(q: Tensor) -> Any:
    """The module of the fused kernels where they serve, else None."""
    if q.device.type != "cuda":
        return None
    kernels = _fused()
    if kernels is None:
        _say("Triton is not installed: point-wise attention runs as blocks of matrix products, without fused kernels")
    elif not kernels.takes(q):
        _say(
            f"point-wise attention with heads of {q.shape[-1]} in {str(q.dtype).removeprefix('torch.')} runs as blocks "
            f"of matrix products: the fused kernels take {', '.join(map(str, kernels.HEAD_DIMS))} in 16 and 32 bits"
        )
        return None
    return kernels


@cache
def _fused() -> Any:
    if importlib.util.find_spec("triton") is None:
        return None
    from backbones.kernels import fused

    return fused


@cache
def _say(text: str) -> None:
    """A warning, once for each text."""
    warnings.warn(text, stacklevel=2)
