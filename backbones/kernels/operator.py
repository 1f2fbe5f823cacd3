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
from transfer.core.errors import Notice, first_line


@torch.library.custom_op("transfer::pointwise", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float) -> Tensor:
    """Return factor * h(scale q k^T) v; `factor` as given, and no cast.

    Args:
        q, k, v: [B, heads, N, d], [B, heads, L, d], [B, heads, L, e], of one type and device.
        h: a name of `blocked.BUFFERED_FUNCTIONS`.

    Returns:
        [B, heads, N, e].
    """
    if not (q.numel() and k.numel()):
        return _empty(_output_shape(q, v), q, v).zero_()
    kernels = _kernels_for(q, v)
    if kernels is not None:
        return kernels.forward(q, k, v, h, factor, scale)
    out = blocked.forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), h, factor, scale)
    return out.view(*q.shape[:3], v.shape[3])


@torch.library.custom_op("transfer::pointwise_backward", mutates_args=())
def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of `attend` for q, k and v."""
    if not (q.numel() and k.numel()):
        return _empty(q, q, v).zero_(), _empty(k, q, v).zero_(), _empty(v, q, v).zero_()
    kernels = _kernels_for(q, v)
    if kernels is not None:
        return kernels.backward(grad, q, k, v, h, factor, scale)
    flat = grad.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    dq, dk, dv = blocked.backward(*flat, h, factor, scale)
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def _empty(x: Tensor, q: Tensor, v: Tensor) -> Tensor:
    """Return an empty tensor of the shape of x [B, heads, N, d], laid out in memory as the computation leaves it.

    The kernels have a token's heads side by side, as projections read and write them; blocks have them one by one.
    """
    kernels = _kernels_for(q, v)
    return x.new_empty(x.shape) if kernels is None else kernels.empty_output(x)


def _output_shape(q: Tensor, v: Tensor) -> Tensor:
    """Return a tensor of shape [B, heads, N, e] that takes no memory."""
    return v.new_empty(()).expand(*q.shape[:3], v.shape[3])


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float) -> Tensor:
    return _empty(_output_shape(q, v), q, v)


@attend_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(q, q, v), _empty(k, q, v), _empty(v, q, v)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, ctx.h, ctx.factor, ctx.scale = inputs
    ctx.save_for_backward(q, k, v)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *attend_backward(grad, *ctx.saved_tensors, ctx.h, ctx.factor, ctx.scale), None, None, None


attend.register_autograd(_gradients, setup_context=_save_inputs)


@register_flop_formula(torch.ops.transfer.pointwise)
def _forward_operations(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Count the two products, from the shapes of q, k and v; a multiply-add counts as two."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


def padded_width(q: Tensor, width: int) -> int:
    """Return the width to which queries and keys are best padded with zeros: the next one of the kernels, if there are
    any.
    """
    kernels = q.device.type == "cuda" and _fused(q.device)[0]
    return next((size for size in blocked.HEAD_DIMS if size >= width), width) if kernels else width


def _kernels_for(*tensors: Tensor) -> Any:
    """Return the module of the fused kernels where they take tensors such as queries and values, else None."""
    if tensors[0].device.type != "cuda":
        return None
    kernels, lacks = _fused(tensors[0].device)
    for x in tensors if kernels else ():
        if x.shape[-1] not in blocked.HEAD_DIMS or x.dtype not in kernels.KERNEL_DTYPES:
            kind, widths = str(x.dtype).removeprefix("torch."), ", ".join(map(str, blocked.HEAD_DIMS))
            lacks = f"heads of {x.shape[-1]} in {kind}; the fused kernels take {widths} in 16 and 32 bits"
    if not lacks:
        return kernels
    warnings.warn(Notice(f"point-wise attention runs as blocks of matrix products: {lacks}"), stacklevel=2)
    return None


@cache
def _fused(device: torch.device) -> tuple[Any, str]:
    """Return the module of the fused kernels, or None and why this GPU does not run them."""
    if importlib.util.find_spec("triton") is None:
        return None, "Triton is not installed"
    try:
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):
            return None, f"the fused kernels need compute capability 8.0; this GPU has {'.'.join(map(str, capability))}"
        from backbones.kernels import fused

        fused.compile_one()
    except Exception as error:  # no C compiler, or a GPU that this Triton does not know
        return None, f"Triton compiles no kernels here ({first_line(error)})"
    return fused, ""
