"""The first places of ranked lists, in the order that is scored.

Letters: G gallery images, b queries of one block, k places of each list.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.ranking.tie_groups import MANY, DistanceSource


def top_ranked(source: DistanceSource, rows: slice, distances: Tensor, keep: int) -> NDArray[Any]:
    """Return the columns [b, k] of the nearest images of each query, ties in the gallery's order; -1 after the end.

    Images whose order is uncertain in float32 are ordered in float64, as in `tasks.ranking.tie_groups`.

    Args:
        source: the distances of all queries.
        rows: the block of queries.
        distances: values [b, G], infinite for left-out images.
        keep: k, at most G.
    """
    k = min(keep, distances.shape[1])
    nearest = _smallest(distances, k)
    last = nearest[:, -1:].clamp(min=0)
    values = distances.gather(1, last)
    slack = source.slack(rows, last, values)
    if slack is None:
        return nearest.cpu().numpy()
    close = (distances <= values + slack) & distances.isfinite()
    count = close.sum(1)
    many = (count > (MANY if distances.device.type == "cpu" else 0)).nonzero().flatten()
    for chunk in many.split(max(1, 2**23 // distances.shape[1])):
        values = source.rows_in_float64((rows.start + chunk).tolist()).masked_fill(
            ~distances[chunk].isfinite(), torch.inf
        )
        nearest[chunk] = _smallest(values, k)
    for row in np.setdiff1d(np.arange(len(distances)), many.cpu().numpy()).tolist():
        columns = close[row].nonzero().flatten().numpy()
        order = source.exact(rows.start + row, columns).argsort(kind="stable")[:k]
        nearest[row, : len(order)] = torch.from_numpy(columns[order])
    return nearest.cpu().numpy()


def _smallest(distances: Tensor, k: int) -> Tensor:
    """Return the columns [b, k] of the smallest distances [b, G], of equal ones the first; -1 for infinite ones."""
    smallest = []
    for block in distances.split(max(2**20 // distances.shape[1], 1)):
        last = block.topk(k, largest=False).values[:, -1:]
        rows, places = (block <= last).nonzero(as_tuple=True)  # in the gallery's order, which stable sorts keep
        order = block[rows, places].argsort(stable=True)
        order = order[rows[order].argsort(stable=True)]
        start = torch.searchsorted(rows, torch.arange(len(block), device=rows.device))
        first = places[order[start[:, None] + torch.arange(k, device=rows.device)]]
        smallest.append(first.masked_fill_(block.gather(1, first) == torch.inf, -1))
    return torch.cat(smallest)
