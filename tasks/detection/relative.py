"""Decomposed relative positions, as in ViTDet (arXiv 2203.16527, after MViTv2, arXiv 2112.01526, section 4.1).

Letters: B images or windows, N = h * w tokens, d = head_dim.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RelativeSoftmax(nn.Module):
    """softmax(q k^T / sqrt(d) + q R_h + q R_w) v, in place of the softmax within an `Attention`.

    `grid`, the (h, w) of the tokens, and `size`, the grid that they are a corner of (a window's, where it ends behind
    the image), are set by whoever calls the attention: tokens alone do not say it.

    Args:
        head_dim: d. size: (h, w) that the tables are made for; they are interpolated for others. They start at zero.
    """

    def __init__(self, head_dim: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * size[0] - 1, head_dim))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * size[1] - 1, head_dim))
        self.size = self.grid = size

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        """[B, heads, N, d] each -> [B, heads, N, d]."""
        d, trains = q.shape[-1], not torch.is_inference_mode_enabled()
        q, k = self._extended(q, k)
        if trains and q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] <= 1024:
            with torch.autocast("cpu", enabled=False):  # as `backbones.attention.softmax`, and as long as it is faster
                return (q @ k.transpose(-2, -1)).softmax(-1) @ v
        v = F.pad(v, (0, q.shape[-1] - d))  # the fused kernels want one width
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)[..., :d]

    def operations(self, pairs: int, tokens: int) -> int:
        """Of the scores of places, q R_h and q R_w, and of the products with the weights; a multiply-add is two.

        Args:
            pairs: B times heads.
        """
        d = self.rel_pos_h.shape[1]
        return 4 * pairs * tokens**2 * d + 2 * pairs * tokens * d * sum(self.grid)

    def _extended(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """[B, heads, N, d + h + w] each, whose products are the scores with the positions in them.

        A key carries the unit vectors of its row and its column, a query its scores of all rows and columns: so no
        N x N tensor of positions, for which no fused kernel has a gradient, is ever made.
        """
        h, w = self.grid
        on_grid = q.unflatten(2, (h, w))
        by_row, by_column = distances(self.rel_pos_h, self.size[0], h), distances(self.rel_pos_w, self.size[1], w)
        rows = torch.einsum("bnhwd,hkd->bnhwk", on_grid, by_row.to(q.dtype)).flatten(2, 3)
        columns = torch.einsum("bnhwd,wkd->bnhwk", on_grid, by_column.to(q.dtype)).flatten(2, 3)
        row, column = torch.eye(h, device=q.device, dtype=q.dtype), torch.eye(w, device=q.device, dtype=q.dtype)
        units = torch.cat([row.repeat_interleave(w, 0), column.repeat(h, 1)], dim=1).expand(*k.shape[:2], -1, -1)
        scaled = q * q.shape[-1] ** -0.5
        return torch.cat([scaled, rows.to(q.dtype), columns.to(q.dtype)], dim=-1), torch.cat([k, units], dim=-1)


def distances(table: Tensor, length: int, shown: int | None = None) -> Tensor:
    """[shown, shown, d]: for a query at i and a key at j the row of the table that stands for i - j.

    Args:
        table: [2 M - 1, d] for distances -(M - 1) .. M - 1; interpolated linearly to 2 length - 1 rows.
        shown: places there are, from the first on; None: `length`.
    """
    if len(table) != 2 * length - 1:
        resized = F.interpolate(table.float().T[None], size=2 * length - 1, mode="linear")
        table = resized[0].T.to(table.dtype)
    places = torch.arange(length if shown is None else shown, device=table.device)
    return table[places[:, None] - places[None, :] + length - 1]
