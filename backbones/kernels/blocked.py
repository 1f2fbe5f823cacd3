"""Point-wise attention in blocks of matrix products, forward and backward: no more scores at a time than `BUDGET`.

Shapes: n images times heads, N queries, L keys, d channels of queries and keys, e of values. Everywhere
S = scale q k^T [n, N, L], W = h(S).
"""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

aten = torch.ops.aten
Grads = tuple[Tensor, Tensor, Tensor]
"""Gradients of q, k and v."""
# Bytes of scores at a time. CPUs: smaller blocks were slower at every length, larger ones from 785 tokens on. GPUs:
# what still fills the device.
BUDGET = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
_MINIMUM_ROWS = 64  # rows of a block
# That the fused kernels take, said here since these need Triton. 256 holds heads of 64 and the relative positions of up
# to 192 rows and columns, 1,024 x 1,024 or 800 x 1,333 pixels in patches of 16.
HEAD_DIMS = (32, 64, 128, 256)


@dataclass(frozen=True)
class ScoreFunction:
    """h and its gradient; both may overwrite their arguments.

    Attributes:
        weigh: (S, a buffer) -> W, in the buffer, or in place of S where `in_place` says so.
        gradient: (gradient of W, S as `weigh` left it, W) -> gradient of S, in place of the first.
    """

    weigh: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]
    in_place: bool = True


BUFFERED_FUNCTIONS: dict[str, ScoreFunction] = {
    "relu": ScoreFunction(
        lambda s, _: s.relu_(), lambda g, s, w: aten.threshold_backward.grad_input(g, w, 0, grad_input=g)
    ),
    "relu2": ScoreFunction(
        lambda s, out: torch.square(s.relu_(), out=out), lambda g, s, w: g.mul_(s).mul_(2), in_place=False
    ),
    "gelu": ScoreFunction(
        lambda s, out: aten.gelu.out(s, out=out),
        lambda g, s, w: aten.gelu_backward.grad_input(g, s, grad_input=g),
        in_place=False,
    ),
    "gelu_tanh": ScoreFunction(
        lambda s, out: aten.gelu.out(s, approximate="tanh", out=out),
        lambda g, s, w: aten.gelu_backward.grad_input(g, s, approximate="tanh", grad_input=g),
        in_place=False,
    ),
    "softplus": ScoreFunction(
        lambda s, out: aten.softplus.out(s, out=out), lambda g, s, w: g.mul_(s.sigmoid_()), in_place=False
    ),
    "identity": ScoreFunction(lambda s, _: s, lambda g, s, w: g),
    "relu6": ScoreFunction(
        lambda s, _: aten.hardtanh_(s, 0, 6),
        lambda g, s, w: aten.hardtanh_backward.grad_input(g, w, 0, 6, grad_input=g),
    ),
    "sigmoid": ScoreFunction(
        lambda s, _: s.sigmoid_(), lambda g, s, w: aten.sigmoid_backward.grad_input(g, w, grad_input=g)
    ),
}


def split_factor(h: str, factor: float, scale: float) -> tuple[float, float]:
    """Return a scale of the scores and a factor behind the weights: (a, b) with b h(a q k^T) = factor h(scale q k^T).

    A square of float16 overflows from 256 on, so the factor, one over some number of tokens, acts before it.
    """
    return (math.sqrt(factor) * scale, 1.0) if h == "relu2" and factor > 0 else (scale, factor)


def forward(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float) -> Tensor:
    """Return factor * h(scale q k^T) v.

    Args:
        q, k, v: [n, N, d], [n, L, d], [n, L, e]; none of them empty.

    Returns:
        [n, N, e].
    """
    function, out = BUFFERED_FUNCTIONS[h], q.new_empty(*q.shape[:2], v.shape[2])
    scale_of_scores, outer = split_factor(h, factor, scale)
    for pairs, rows, (scores,) in _blocks(q, k, 1):
        scaled_matmul(q[pairs, rows], k[pairs].mT, scale_of_scores, scores)
        scaled_matmul(function.weigh(scores, scores), v[pairs], outer, out[pairs, rows])
    return out


def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, h: str, factor: float, scale: float) -> Grads:
    """Return gradients of `forward` for q, k and v, from that of its result [n, N, e]. Scores are computed again."""
    scale_of_scores, outer = split_factor(h, factor, scale)
    scale_of_slopes = scale_of_scores * outer
    function = BUFFERED_FUNCTIONS[h]
    buffers = 2 if function.in_place else 3
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    # sums over several blocks of queries are in float32 at least: their roundings to bfloat16 would add up
    whole = _block_shape(q, k, buffers)[1] == q.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    dk, dv = (x.new_empty(x.shape) if whole else x.new_zeros(x.shape, dtype=wide) for x in (k, v))
    for pairs, rows, (scores, slopes, *spare) in _blocks(q, k, buffers):
        scaled_matmul(q[pairs, rows], k[pairs].mT, scale_of_scores, scores)
        weights = function.weigh(scores, spare[0] if spare else scores)
        _add_product(dv[pairs], weights.mT, grad[pairs, rows], outer, whole)
        scaled_matmul(grad[pairs, rows], v[pairs].mT, 1.0, slopes)
        slopes = function.gradient(slopes, scores, weights)
        _add_product(dk[pairs], slopes.mT, q[pairs, rows], scale_of_slopes, whole)
        scaled_matmul(slopes, k[pairs], scale_of_slopes, dq[pairs, rows])
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def scaled_matmul(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return scale * a b, for [n, rows, inner] and [n, inner, columns], written into `out` if one is given."""
    unused = a.new_empty(1, 1, 1)
    if out is None or not out.is_contiguous():  # which torch would copy first
        result = torch.baddbmm(unused, a, b, beta=0, alpha=scale)
        return result if out is None else out.copy_(result)
    return torch.baddbmm(unused, a, b, beta=0, alpha=scale, out=out)


def _add_product(total: Tensor, a: Tensor, b: Tensor, scale: float, only: bool) -> None:
    """Add a `scaled_matmul` to `total`; if it is the `only` term, overwrite the total with it."""
    if only:
        scaled_matmul(a, b, scale, total)
    else:
        total += scaled_matmul(a, b, scale)


def _block_shape(q: Tensor, k: Tensor, buffers: int) -> tuple[int, int]:
    """Return how many of n and of N a block takes, with this many buffers of scores."""
    room = BUDGET.get(q.device.type, BUDGET["cuda"]) // (q.element_size() * buffers * k.shape[1])
    height = min(q.shape[1], max(room // _MINIMUM_ROWS * _MINIMUM_ROWS, _MINIMUM_ROWS))
    return min(q.shape[0], max(room // height, 1)), height


def _blocks(q: Tensor, k: Tensor, buffers: int) -> Iterator[tuple[slice, slice, list[Tensor]]]:
    """Yield slices of n and of N, and for each the buffers [n', N', L], which the next ones use again."""
    count, height = _block_shape(q, k, buffers)
    n, N, L = *q.shape[:2], k.shape[1]
    space = _scratch.take(buffers * count * height * L, q).view(buffers, -1)
    for first in range(0, n, count):
        for row in range(0, N, height):
            pairs, rows = slice(first, min(first + count, n)), slice(row, min(row + height, N))
            shape = pairs.stop - pairs.start, rows.stop - rows.start, L
            yield pairs, rows, [buffer[: shape[0] * shape[1] * L].view(shape) for buffer in space]


class _Scratch(threading.local):
    """A buffer of each thread, kept: fresh memory costs a CPU more in page faults than what is computed in it."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, numel: int, like: Tensor) -> Tensor:
        """Return a flat, uninitialised tensor of `numel` elements of the type and on the device of `like`."""
        if like.device.type != "cpu":
            return like.new_empty(numel)
        size = numel * like.element_size()
        if size > self.bytes.numel():
            with torch.inference_mode(False):
                self.bytes = torch.empty(size, dtype=torch.uint8)
        return self.bytes[:size].view(like.dtype)


_scratch = _Scratch()
