"""Tie groups of the matches of a query: the numbers of nearer and of equally near gallery images.

The rank of a match is a count of nearer values, so sorting values suffices: no argsort, no order of ties.
Shapes: G gallery images, b queries of one block, M gallery images of a query's identity.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def tie_groups(
    distances: Tensor, columns: Tensor, match: Tensor, left_out: Tensor
) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """Return the tie group of each match, in the order of the distances.

    Args:
        distances: of a block of queries [b, G]; overwritten.
        columns, match, left_out: [b, M] from `Matches.block`.

    Returns:
        b, n, m, k of `tasks.ranking.tie_expectations`, each [b, M], a row's matches first and the rest
        undefined; and the number of gallery images that are not left out [b].
    """
    matched = distances.gather(1, columns)
    others = match | left_out
    distances[others.nonzero()[:, 0], columns[others]] = torch.inf
    edges = matched.masked_fill(~match, -torch.inf).cpu().numpy()
    below, within = counts(distances.cpu().numpy(), edges)
    kept = (distances.shape[1] - left_out.sum(1)).cpu().numpy()
    return _groups(below, within, edges), kept


def _groups(below: NDArray[Any], within: NDArray[Any], keys: NDArray[Any]) -> list[NDArray[Any]]:
    """Return b, n, m, k [b, M] of each match from its nearer and equal entries that are no matches, and its distance.

    The distance is -inf without a match.
    """
    keys = np.where(keys > -np.inf, keys, np.inf)
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = [np.take_along_axis(array, order, axis=1) for array in (below, within, keys)]
    below, within = ordered[:2]
    place = np.broadcast_to(np.arange(order.shape[1]), order.shape)
    start = np.ones(order.shape, dtype=bool)
    start[:, 1:] = ordered[2][:, 1:] != ordered[2][:, :-1]
    first = np.maximum.accumulate(np.where(start, place, 0), axis=1)
    ends = np.ones(order.shape, dtype=bool)
    ends[:, :-1] = start[:, 1:]
    after = np.where(ends, place + 1, order.shape[1])
    last = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1]
    return [below + first, within - below + last - first, first, last - first]


def counts(values: NDArray[Any], edges: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Count in each row of `values` [b, G] those below each of `edges` [b, M], and those up to each."""
    below, within = (np.zeros(edges.shape, dtype=np.int64) for _ in range(2))

    def count(rows: NDArray[Any]) -> None:
        for row in rows.tolist():
            ordered = np.sort(values[row][values[row] <= edges[row].max()])
            below[row], within[row] = ordered.searchsorted(edges[row]), ordered.searchsorted(edges[row], "right")

    # numpy sorts bare values with vector instructions and without the interpreter's lock
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(count, np.array_split(np.arange(len(values)), threads)))
    return below, within
