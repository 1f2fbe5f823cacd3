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
    """The columns [b, k] of the nearest images of each query, of equally near ones the first; -1 behind the end.

    What float32 cannot tell apart is ordered by its distances in float64, as in `tasks.ranking.tie_groups`.

    Args:
        source: of the distances of all queries.
        rows: of the block.
        distances: [b, G], infinite for what is left out.
        keep: k, or all of the gallery where it is smaller.
    """
    k = min(keep, distances.shape[1])
    found = _smallest(distances, k)
    last = found[:, -1:].clamp(min=0)
    values = distances.gather(1, last)
    slack = source.slack(rows, last, values)
    if slack is None:
        return found.cpu().numpy()
    close = (distances <= values + slack) & distances.isfinite()
    count = close.sum(1)
    many = (count > (MANY if distances.device.type == "cpu" else 0)).nonzero().flatten()
    for some in many.split(max(1, 2**23 // distances.shape[1])):
        whole = source.whole((rows.start + some).tolist()).masked_fill(~distances[some].isfinite(), torch.inf)
        found[some] = _smallest(whole, k)
    for row in np.setdiff1d(np.arange(len(distances)), many.cpu().numpy()).tolist():
        columns = close[row].nonzero().flatten().numpy()
        order = source.exact(rows.start + row, columns).argsort(kind="stable")[:k]
        found[row, : len(order)] = torch.from_numpy(columns[order])
    return found.cpu().numpy()


def _smallest(distances: Tensor, k: int) -> Tensor:
    """The columns [b, k] of the smallest of distances [b, G], of equal ones the first; -1 for infinite ones."""
    found = []
    for block in distances.split(max(2**20 // distances.shape[1], 1)):
        last = block.topk(k, largest=False).values[:, -1:]
        rows, places = (block <= last).nonzero(as_tuple=True)  # in the gallery's order, which stable sorts keep
        order = block[rows, places].argsort(stable=True)
        order = order[rows[order].argsort(stable=True)]
        start = torch.searchsorted(rows, torch.arange(len(block), device=rows.device))
        first = places[order[start[:, None] + torch.arange(k, device=rows.device)]]
        found.append(first.masked_fill_(block.gather(1, first) == torch.inf, -1))
    return torch.cat(found)
