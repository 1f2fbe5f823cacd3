# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Point-wise attention on a GPU, in Triton: no N x L tensor is ever in memory, forward or backward.

Without row maximum, sum of exponentials and rescaling, a block of keys just adds its share. The backward
pass needs nothing of the forward one but its inputs. It runs twice, per block of keys and per block of queries, and so
needs no atomic additions: its results are the same bits every time. All passes are one kernel, whose rows are those of
the queries, or of the keys.

Shapes: B images, N queries, L keys, D channels of queries and keys, E of values; a program has M rows and reads J
columns at a time. A tensor [B, heads, ., D] is given as a pointer and the strides of an image, a head and a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from backbones.kernels.blocked import HEAD_DIMS, Grads, split_factor

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


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
    (2, 256): (Tile(64, 32, 8, 2), Tile(32, 32, 8, 1)),  # no spills beside values of 64, from 8.0 to 12.0
    **{(4, d): _SINGLE[d > 64 :] for d in HEAD_DIMS},
}
_tiles_too_large: set[tuple[Any, ...]] = set()


def compile_one() -> None:
    """Compile a kernel for the current GPU, which takes a second, once. Raises what Triton raises where it cannot."""
    tensor = torch.float16, 64, 32, 32  # type and strides
    rows_kernel.warmup(
        *(6 * tensor), 2, 32, 32, 1.0, 1.0, 1.0, H="relu", SCALED=True, D=32, E=32, M=32, J=32, EVEN=False,
        PRECISION="ieee", OUT=True, SLOPES=False, num_warps=4, num_stages=1, grid=(1,),
    )  # fmt: skip


def forward(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float) -> Tensor:
    """Return factor * h(scale q k^T) v.

    Args:
        q, k, v: [B, heads, N, D], [B, heads, L, D], [B, heads, L, E], none of them empty, of any strides.

    Returns:
        [B, heads, N, E], in memory as [B, N, heads, E], the order that the next projection reads.
    """
    q, k, v = (_with_contiguous_rows(x) for x in (q, k, v))
    out = empty_output(v[:, :, :1].expand(-1, -1, q.shape[2], -1))
    _launch((q, k, q, v, out, out), h, factor, scale, slopes=False)
    return out


def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float) -> Grads:
    """Return gradients of `forward` for q, k and v, from that of its result [B, heads, N, E]."""
    grad, q, k, v = (_with_contiguous_rows(x) for x in (grad, q, k, v))
    dq, dk, dv = empty_output(q), empty_output(k), empty_output(v)
    _launch((k, q, v, grad, dk, dv), h, factor, scale)
    _launch((q, k, grad, v, dq, dq), h, factor, scale, out=False)
    return dq, dk, dv


def empty_output(x: Tensor) -> Tensor:
    """Return an empty tensor of the shape of x [B, heads, N, D], with a token's heads side by side in memory."""
    B, heads, N, D = x.shape
    return x.new_empty(B, N, heads, D).transpose(1, 2)


def _with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch(
    tensors: Sequence[Tensor], h: str, factor: float, scale: float, *, out: bool = True, slopes: bool = True
) -> None:
    """Run the kernel on its tensors x, y, u, w, dx and out, with the first of its tiles that this GPU has room for.

    Without `out` or `slopes` any tensor stands for those that are neither read nor written.
    """
    x, y, E = tensors[0], tensors[1], tensors[3].shape[3]
    B, heads, N, D = x.shape
    arguments: list[Any] = []
    for tensor in tensors:
        arguments += [tensor, *tensor.stride()[:3]]
    scale_of_scores, outer = split_factor(h, factor, scale)
    # h(scale s) = scale h(s) for these: one operation less for each pair of tokens; float16 could overflow without it
    scaled = h not in ("relu", "identity") or x.dtype == torch.float16
    factors = scale_of_scores, outer if scaled else outer * scale_of_scores, outer * scale_of_scores
    precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
    for tile in TILES[x.element_size(), max(D, E)]:
        key = (out, slopes, tile, D, E, x.dtype, x.device)
        if key in _tiles_too_large:
            continue
        grid = (B * heads * -(-N // tile.rows),)
        try:
            with torch.cuda.device_of(x):  # Triton launches on the current one
                rows_kernel[grid](
                    *arguments, heads, N, y.shape[2], *factors, H=h, SCALED=scaled, D=D, E=E, M=tile.rows,
                    J=tile.columns, EVEN=y.shape[2] % tile.columns == 0, PRECISION=precision, OUT=out, SLOPES=slopes,
                    num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
                )  # fmt: skip
            return
        except OutOfResources:
            _tiles_too_large.add(key)
    raise RuntimeError(f"no tile of {rows_kernel.fn.__name__} fits into the shared memory of {x.device}")


@triton.jit
def _weigh(s, H: tl.constexpr):
    """Return h of scores in float32. No h hides a NaN."""
    if H == "relu":
        w = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif H == "relu2":
        w = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
        w = w * w
    elif H == "gelu":
        w = 0.5 * s * (1.0 + tl.erf(s * 0.7071067811865476))
    elif H == "gelu_tanh":
        # (1 + tanh u) / 2 is the sigmoid of 2 u
        w = s / (1.0 + tl.exp(-1.5957691216057308 * (s + 0.044715 * s * s * s)))
    elif H == "softplus":
        w = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL) + tl.log(1.0 + tl.exp(-tl.abs(s)))
    elif H == "relu6":
        w = tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
        w = tl.minimum(w, 6.0, propagate_nan=tl.PropagateNan.ALL)
    elif H == "sigmoid":
        w = 1.0 / (1.0 + tl.exp(-s))
    else:
        w = s
    return w


@triton.jit
def _slope(g, s, H: tl.constexpr):
    """Return g h'(s) in float32."""
    if H == "relu":
        d = tl.where(s <= 0, 0.0, g)
    elif H == "relu2":
        d = tl.where(s <= 0, 0.0, 2.0 * s * g)
    elif H == "gelu":
        d = g * (0.5 * (1.0 + tl.erf(s * 0.7071067811865476)) + s * 0.3989422804014327 * tl.exp(-0.5 * s * s))
    elif H == "gelu_tanh":
        p = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (s + 0.044715 * s * s * s)))
        d = g * (p + s * p * (1.0 - p) * 1.5957691216057308 * (1.0 + 0.134145 * s * s))
    elif H == "softplus":
        d = g / (1.0 + tl.exp(-s))
    elif H == "relu6":
        d = tl.where((s <= 0) | (s >= 6), 0.0, g)
    elif H == "sigmoid":
        w = 1.0 / (1.0 + tl.exp(-s))
        d = g * w * (1.0 - w)
    else:
        d = g
    return d


@triton.jit
def _scores(x, y, scale, SCALED: tl.constexpr, PRECISION: tl.constexpr):
    """Return scale x y^T in float32, or without the scale where the caller applies it."""
    s = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    if SCALED:
        s *= scale
    return s


@triton.jit
def _at(base, pair, heads, of_image, of_head):
    """Return the pointer to a head of an image; `pair` counts both."""
    return base + (pair // heads).to(tl.int64) * of_image + (pair % heads).to(tl.int64) * of_head


@triton.jit
def _read(base, rows, of_row, count, D: tl.constexpr, EVEN: tl.constexpr):
    """Read rows [., D]; zeros behind the last, which then add nothing to any product."""
    places = base + rows[:, None].to(tl.int64) * of_row + tl.arange(0, D)[None, :]
    if EVEN:  # noqa: SIM108  (Triton compiles one of the two)
        x = tl.load(places)
    else:
        x = tl.load(places, mask=rows[:, None] < count, other=0.0)
    return x


@triton.jit
def _write(base, rows, of_row, count, x, D: tl.constexpr):
    places = base + rows[:, None].to(tl.int64) * of_row + tl.arange(0, D)[None, :]
    tl.store(places, x.to(base.dtype.element_ty), mask=rows[:, None] < count)


@triton.jit
def rows_kernel(
    x, x_image, x_head, x_row, y, y_image, y_head, y_row, u, u_image, u_head, u_row, w, w_image, w_head, w_row,
    dx, dx_image, dx_head, dx_row, out, out_image, out_head, out_row, heads, N, L, scale, of_weights, of_scores,
    H: tl.constexpr, SCALED: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr, J: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr, SLOPES: tl.constexpr,
):  # fmt: skip
    """Compute sums over the L rows j of y and w for M of the N rows i of x and u, with s = scale x_i y_j.

    OUT: out_i = of_weights sum_j h(s) w_j. SLOPES: dx_i = of_scores sum_j h'(s) (u_i w_j) y_j.
    """
    blocks = tl.cdiv(N, M)
    pair, rows = tl.program_id(0) // blocks, tl.program_id(0) % blocks * M + tl.arange(0, M)
    own = _read(_at(x, pair, heads, x_image, x_head), rows, x_row, N, D, False)
    if SLOPES:
        grads = _read(_at(u, pair, heads, u_image, u_head), rows, u_row, N, E, False)
    y = _at(y, pair, heads, y_image, y_head)
    w = _at(w, pair, heads, w_image, w_head)
    of_own, of_values = tl.zeros((M, D), tl.float32), tl.zeros((M, E), tl.float32)
    for first in range(0, L, J):
        columns = first + tl.arange(0, J)
        others = _read(y, columns, y_row, L, D, EVEN)
        values = _read(w, columns, w_row, L, E, EVEN)
        scores = _scores(own, others, scale, SCALED, PRECISION)
        if OUT:
            of_values = tl.dot(_weigh(scores, H).to(values.dtype), values, of_values, input_precision=PRECISION)
        if SLOPES:
            slopes = _slope(tl.dot(grads, tl.trans(values), input_precision=PRECISION), scores, H).to(others.dtype)
            of_own = tl.dot(slopes, others, of_own, input_precision=PRECISION)
    if SLOPES:
        _write(_at(dx, pair, heads, dx_image, dx_head), rows, dx_row, N, of_own * of_scores, D)
    if OUT:
        _write(_at(out, pair, heads, out_image, out_head), rows, out_row, N, of_values * of_weights, E)
