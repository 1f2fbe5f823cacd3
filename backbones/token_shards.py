"""Tokens of one image on several ranks, where an image is too large for one, or should be done sooner.

The ranks of a group see the same images. Each computes the stem, keeps its share of the tokens for the blocks, where
all but attention acts on single tokens, and gets all tokens back for the pooling and the loss. In attention a rank has
its own keys and values, and the queries of all:

    point-wise   gather the queries; h(q k^T) v over the own keys; add the partial outputs up, each where it belongs
    softmax      the same, and in between the maxima of all rows; their sums travel with the outputs
    others       gather keys and values of all

so 2 collectives against 3 forward, and 2 backward in both. Every operation's gradient is that of the sum of the ranks'
losses, so that DDP's mean over all ranks gives each parameter the gradient that one process would.

Shapes: B images, N tokens in all, n of this rank, D channels, d = head_dim.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from backbones.kernels import functions
from transfer.core.errors import UsageError
from transfer.engine.dist import LONGEST

Core = Callable[..., Tensor]


class Shards:
    """One rank's view of the group of ranks that share the tokens of an image.

    Args:
        size: how many neighbouring ranks form a group; the world is a multiple of it.

    Attributes:
        tokens: N while the tokens are split, else None.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.tokens: int | None = None
        self.group, _ = dist.new_subgroups(size, timeout=LONGEST)
        self.rank = dist.get_rank(self.group)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shards":
        return self  # of a teacher or an average of the weights, on the same ranks

    def counts(self, tokens: int) -> list[int]:
        """Return the number of tokens of each rank; they differ by one at most."""
        return [tokens * (rank + 1) // self.size - tokens * rank // self.size for rank in range(self.size)]

    def split(self, x: Tensor) -> Tensor:
        """Return this rank's [B, n, D] of the [B, N, D] that every rank has."""
        self.tokens = x.shape[1]
        if self.tokens < self.size:
            raise UsageError(f"--sequence-parallel {self.size}: there are only {self.tokens} tokens to share")
        counts = self.counts(self.tokens)
        return x.narrow(1, sum(counts[: self.rank]), counts[self.rank])

    def join(self, x: Tensor) -> Tensor:
        """Return all tokens [B, N, D], the reverse of `split`."""
        tokens, self.tokens = self.tokens, None
        return _Exchange.apply(x, _gather_tokens, _sum_over_ranks, self, tokens, 1)

    def distribute(self, core: Core) -> Core:
        """Return an attention function for this rank's queries, and the keys and values of all ranks."""
        kind = getattr(core, "func", core)
        if kind is functions.pointwise:
            return lambda q, k, v, **options: self._add(core(self._all(q), k, v, **options))
        if core is functions.softmax:
            return self._softmax
        return lambda q, k, v, **options: core(q, self._all(k), self._all(v), **options)

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = functions.checked_qkv(q, k, v)
        with functions.without_autocast(q):
            scores = self._all(q) @ (k.transpose(-2, -1) * q.shape[-1] ** -0.5)
            highest = scores.detach().amax(-1, keepdim=True)
            dist.all_reduce(highest, dist.ReduceOp.MAX, self.group)
            assert self.tokens is not None
            weights = (scores - highest).exp() / self.tokens  # within float16; it cancels in the quotient
            # both sums travel in one collective
            parts = self._add(torch.cat([weights @ v, weights.sum(-1, keepdim=True)], dim=-1))
            return functions.divide_by_totals(parts[..., :-1], parts[..., -1:].to(functions.wide_type(parts)))

    def _all(self, q: Tensor) -> Tensor:
        """Gather [B, heads, n, d] of every rank as [B, heads, N, d]."""
        return _Exchange.apply(q, _gather_tokens, _sum_over_ranks, self, self.tokens, 2)

    def _add(self, parts: Tensor) -> Tensor:
        """Sum [B, heads, N, d] of every rank, and return [B, heads, n, d] for this rank's queries."""
        return _Exchange.apply(parts, _sum_over_ranks, _gather_tokens, self, self.tokens, 2)


def forward_collectives(core: Core) -> int:
    """Return the number of collectives of an attention function whose tokens are shared out, counted as it is called
    by torch, in a group of this process alone.
    """
    from torch.distributed.tensor.debug import CommDebugMode

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        shards, q = Shards(1), torch.ones(1, 1, 2, 1)
        shards.tokens = q.shape[2]
        with CommDebugMode() as counter, warnings.catch_warnings(action="ignore", category=FutureWarning):
            shards.distribute(core)(q, q, q)
        return int(counter.get_total_counts())
    finally:
        dist.destroy_process_group()


class _Exchange(torch.autograd.Function):
    """One of the two below, whose gradient is the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Core, gradient: Core, *place: Any) -> Tensor:
        ctx.gradient, ctx.place = gradient, place
        return way(x, *place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.gradient(grads[0], *ctx.place), None, None, None, None, None


def _gather_tokens(x: Tensor, shards: Shards, tokens: int, dim: int) -> Tensor:
    """Gather n tokens of each rank along `dim` as N. One collective; ranks with one token less send a row of zeros."""
    counts = shards.counts(tokens)
    rows = _pad_rows(x.movedim(dim, 0), max(counts))
    gathered = rows.new_empty(shards.size * len(rows), *rows.shape[1:])
    dist.all_gather_into_tensor(gathered, rows, shards.group)
    if len(gathered) > tokens:
        gathered = torch.cat([part[:count] for part, count in zip(gathered.split(len(rows)), counts)])
    return gathered.movedim(0, dim)


def _sum_over_ranks(x: Tensor, shards: Shards, tokens: int, dim: int) -> Tensor:
    """Sum N tokens along `dim` over ranks, and return this rank's n. One collective."""
    counts = shards.counts(tokens)
    parts = torch.cat([_pad_rows(part, max(counts)) for part in x.movedim(dim, 0).split(counts)])
    summed = parts.new_empty(max(counts), *parts.shape[1:])
    dist.reduce_scatter_tensor(summed, parts, group=shards.group)
    return summed[: counts[shards.rank]].movedim(0, dim)


def _pad_rows(rows: Tensor, count: int) -> Tensor:
    missing = count - len(rows)
    return F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, missing)).contiguous() if missing else rows.contiguous()
