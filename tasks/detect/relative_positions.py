"""Decomposed relative positions, as in ViTDet (arXiv 2203.16527, after MViTv2, arXiv 2112.01526, section 4.1).

Shapes: B images or windows, N = h * w tokens, d = head_dim.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.kernels.functions import checked_inputs, softmax
from backbones.kernels.operator import padded_width


class RelativePositions(nn.Module):
    """An attention function of q, k, v whose scores q k^T / sqrt(d) become q k^T / sqrt(d) + q R_h + q R_w.

    So softmax(q k^T / sqrt(d) + q R_h + q R_w) v, and L^-alpha h(q k^T / sqrt(d) + q R_h + q R_w) v.

    `grid`, the (h, w) of the tokens, and `size`, the grid that they are a corner of (a window's, where it ends behind
    the image), are set by the caller, since tokens alone do not determine them.

    Args:
        inner: takes q and k of any width, v, and their `scale`; see `backbones.attention.takes_scale`.
        head_dim: d. size: (h, w) that the tables are made for; they are interpolated for others. They start at zero.
    """

    wraps_inner = True
    """Tells exports of the backbone that the tables belong to the detector, and `inner` to the backbone."""

    def __init__(self, inner: Callable[..., Tensor], head_dim: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.inner = inner
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * size[0] - 1, head_dim))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * size[1] - 1, head_dim))
        self.size = self.grid = size

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return attention [B, heads, N, d] of q, k, v [B, heads, N, d]."""
        q, k, v = checked_inputs(q, k, v)
        wide_q, wide_k = self._extended(q, k)
        if q.is_meta:  # operations are counted: positions are added to the scores, and do not widen their product
            return self.inner(q, k, v, scale=1.0, **options)
        return self.inner(wide_q, wide_k, v, scale=1.0, **options)

    def _extended(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return q and k [B, heads, N, d + h + w] whose products are the scores with the positions in them.

        A key carries the unit vectors of its row and its column, a query its scores of all rows and columns: so no
        N x N tensor of positions, for which no fused kernel has a gradient, is ever made. On a GPU zeros pad them to
        a width that the kernels of point-wise attention take.
        """
        h, w = self.grid
        on_grid = q.unflatten(2, (h, w))
        by_row, by_column = distances(self.rel_pos_h, self.size[0], h), distances(self.rel_pos_w, self.size[1], w)
        rows = torch.einsum("bnhwd,hkd->bnhwk", on_grid, by_row.to(q.dtype)).flatten(2, 3)
        columns = torch.einsum("bnhwd,wkd->bnhwk", on_grid, by_column.to(q.dtype)).flatten(2, 3)
        row, column = torch.eye(h, device=q.device, dtype=q.dtype), torch.eye(w, device=q.device, dtype=q.dtype)
        units = torch.cat([row.repeat_interleave(w, 0), column.repeat(h, 1)], dim=1)
        width = q.shape[-1] + h + w
        filled = 0 if self.inner is softmax else padded_width(q, width) - width
        units = F.pad(units, (0, filled)).expand(*k.shape[:2], -1, -1)
        scaled = [q * q.shape[-1] ** -0.5, rows.to(q.dtype), columns.to(q.dtype)]
        scaled += [q.new_zeros(*q.shape[:3], filled)] if filled else []
        return torch.cat(scaled, dim=-1), torch.cat([k, units], dim=-1)


def distances(table: Tensor, length: int, shown: int | None = None) -> Tensor:
    """Return [shown, shown, d]: the row of the table for i - j, for a query at i and a key at j.

    Args:
        table: [2 M - 1, d] for distances -(M - 1) .. M - 1; interpolated linearly to 2 length - 1 rows.
        length: places that the table is for.
        shown: number of places returned, from the first on; None: `length`.
    """
    if len(table) != 2 * length - 1:
        resized = F.interpolate(table.float().T[None], size=2 * length - 1, mode="linear")
        table = resized[0].T.to(table.dtype)
    places = torch.arange(length if shown is None else shown, device=table.device)
    return table[places[:, None] - places[None, :] + length - 1]
