"""The first places of ranked lists, in the order that is scored.

Shapes: G gallery images, b queries of one block, k places of each list.
"""

import torch
from torch import Tensor


def top_ranked(distances: Tensor, keep: int) -> Tensor:
    """Return the columns [b, k] of the smallest distances [b, G], k = min(keep, G).

    Of equal distances it is the first columns; -1 stands for infinite ones, which are left out.
    """
    k, smallest = min(keep, distances.shape[1]), []
    for block in distances.split(max(2**20 // distances.shape[1], 1)):
        last = block.topk(k, largest=False).values[:, -1:]
        rows, places = (block <= last).nonzero(as_tuple=True)  # in the gallery's order, which stable sorts keep
        order = block[rows, places].argsort(stable=True)
        order = order[rows[order].argsort(stable=True)]
        start = torch.searchsorted(rows, torch.arange(len(block), device=rows.device))
        first = places[order[start[:, None] + torch.arange(k, device=rows.device)]]
        smallest.append(first.masked_fill_(block.gather(1, first) == torch.inf, -1))
    return torch.cat(smallest)
