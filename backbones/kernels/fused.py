"""Point-wise attention on a GPU: no N x L tensor is ever in memory, forward or backward.

Shapes: B images, N queries, L keys, D channels of queries and keys, E of values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from backbones.kernels import triton_kernels
from backbones.kernels.blocked import HEAD_DIMS, score_scale, split_factor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Tile:
    """M rows of a program, J columns at a time, and Triton's warps and stages."""

    rows: int
    columns: int
    warps: int
    stages: int


# From what should be fastest down to what any GPU has room for, by bytes of an element and head size. For ReLU the
# first ones spill no registers on compute capability 9.0. `python -m tests.benchmarks attention --tune` measures them.
_HALF = (Tile(128, 64, 8, 3), Tile(64, 64, 4, 2), Tile(64, 32, 4, 1), Tile(32, 32, 4, 1))
_SINGLE = (Tile(32, 32, 8, 2), Tile(32, 16, 8, 1))
TILES: dict[tuple[int, int], tuple[Tile, ...]] = {
    **{(2, d): _HALF for d in HEAD_DIMS},
    **{(4, 32): _SINGLE, (4, 64): _SINGLE, (4, 128): _SINGLE[1:]},
}
_tiles_too_large: set[tuple[Any, ...]] = set()


def supports(q: Tensor) -> bool:
    """Return whether the kernels cover this head size and precision."""
    return q.shape[-1] in HEAD_DIMS and q.dtype in DTYPES


def forward(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float | None = None) -> Tensor:
    """Return factor * h(scale q k^T) v; without a scale 1 / sqrt(D).

    Args:
        q, k, v: [B, heads, N, D], [B, heads, L, D], [B, heads, L, E], none of them empty, of any strides.

    Returns:
        [B, heads, N, E], in memory as [B, N, heads, E], the order that the next projection reads.
    """
    q, k, v = _with_contiguous_rows(q), _with_contiguous_rows(k), _with_contiguous_rows(v)
    out = empty_output(v[:, :, :1].expand(-1, -1, q.shape[2], -1))
    _launch(triton_kernels.forward, (q, k, v, out), q.shape[2], k.shape[2], h, factor, scale)
    return out


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of `forward` for q, k and v, from that of its result [B, heads, N, E]."""
    grad, q, k, v = (_with_contiguous_rows(x) for x in (grad, q, k, v))
    dq, dk, dv = empty_output(q), empty_output(k), empty_output(v)
    _launch(triton_kernels.backward_keys, (q, k, v, grad, dk, dv), k.shape[2], q.shape[2], h, factor, scale)
    _launch(triton_kernels.backward_queries, (q, k, v, grad, dq), q.shape[2], k.shape[2], h, factor, scale)
    return dq, dk, dv


def empty_output(x: Tensor) -> Tensor:
    """Return an empty tensor of the shape of x [B, heads, N, D], with a token's heads side by side in memory."""
    B, heads, N, D = x.shape
    return x.new_empty(B, N, heads, D).transpose(1, 2)


def _with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch(
    kernel: Any, tensors: Sequence[Tensor], rows: int, columns: int, h: str, factor: float, scale: float | None = None
) -> None:
    """Run a kernel with the first of its tiles that this GPU has room for."""
    q, k, E = tensors[0], tensors[1], tensors[2 if len(tensors) > 2 else 1].shape[3]
    B, heads, N, D = q.shape
    arguments = [value for tensor in tensors for value in (tensor, *tensor.stride()[:3])]
    inner, outer = split_factor(h, factor)
    scale_of_scores = inner * score_scale(q, scale)
    # h(scale s) = scale h(s) for these: one operation less for each pair of tokens; float16 could overflow without it
    scaled = h not in ("relu", "identity") or q.dtype == torch.float16
    factors = scale_of_scores, outer if scaled else outer * scale_of_scores, outer * scale_of_scores
    precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
    for tile in TILES[q.element_size(), max(D, E)]:
        key = (kernel.fn.__name__, tile, D, E, q.dtype, q.device)
        if key in _tiles_too_large:
            continue
        grid = (B * heads * -(-rows // tile.rows),)
        try:
            with torch.cuda.device_of(q):  # Triton launches on the current one
                kernel[grid](
                    *arguments, heads, N, k.shape[2], *factors, H=h, SCALED=scaled, D=D, E=E, M=tile.rows,
                    J=tile.columns, EVEN=columns % tile.columns == 0, PRECISION=precision, num_warps=tile.warps,
                    num_stages=tile.stages, enable_fp_fusion=True,
                )  # fmt: skip
            return
        except OutOfResources:
            _tiles_too_large.add(key)
    raise RuntimeError(f"no tile of {kernel.fn.__name__} fits into the shared memory of {q.device}")
