"""Tie groups of the matches of a query: the numbers of nearer and of equally near gallery images.

The rank of a match is a count of nearer values, so sorting values suffices: no argsort, no order of ties. Images whose
order is uncertain in float32 are compared in float64.
Letters: G gallery images, b queries of one block, M gallery images of a query's identity.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SORTED = 48
"""Number of edges from which sorting a row is faster than comparing it with each."""
MANY = 512
"""Number of uncertain entries of a query beyond which all of its distances are computed in float64."""


class DistanceSource(Protocol):
    """Source of distances, such as `tasks.ranking.distances.Distances` and `ExactDistances`."""

    def block(self, rows: slice) -> Tensor:
        """Return values [b, G] in the order of the distances, which the caller may overwrite."""

    def slack(self, rows: slice, columns: Tensor, values: Tensor) -> Tensor | None:
        """Return the differences [b, M] from `values` up to which the order is uncertain; None if values are exact."""

    def exact(self, row: int, columns: NDArray[Any]) -> NDArray[Any]:
        """Return the distances of one query to gallery columns in float64."""

    def rows_in_float64(self, rows: list[int]) -> Tensor:
        """Return the distances [n, G] of some queries in float64, up to a constant per query."""

    def of_places(self, rows: slice, places: NDArray[Any]) -> NDArray[Any]:
        """Return the distances [b, k] of a block of queries to gallery columns [b, k]; `block` may lack a constant."""


class ExactDistances:
    """Distances [Q, G] without rounding errors."""

    def __init__(self, distances: Tensor) -> None:
        self.distances = distances

    def block(self, rows: slice) -> Tensor:
        """Return a copy of the distances [b, G]."""
        return self.distances[rows].clone()

    def slack(self, rows: slice, columns: Tensor, values: Tensor) -> None:
        """Return None: the distances are exact."""

    def exact(self, row: int, columns: NDArray[Any]) -> NDArray[Any]:
        """Raise NotImplementedError: exact distances need no second look."""
        raise NotImplementedError

    def rows_in_float64(self, rows: list[int]) -> Tensor:
        """Raise NotImplementedError: exact distances need no second look."""
        raise NotImplementedError

    def of_places(self, rows: slice, places: NDArray[Any]) -> NDArray[Any]:
        """Return the distances [b, k] of a block of queries to gallery columns [b, k]."""
        columns = torch.from_numpy(places).to(self.distances.device)
        found: NDArray[Any] = self.distances[rows].gather(1, columns).float().cpu().numpy()
        return found


def tie_groups(
    source: DistanceSource, rows: slice, distances: Tensor, columns: Tensor, match: Tensor, left_out: Tensor
) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """Return the tie group of each match, in the order of the distances.

    Args:
        source: the distances of all queries.
        rows: the block of queries.
        distances: `source.block(rows)` [b, G]; overwritten.
        columns, match, left_out: [b, M] from `Matches.block`.

    Returns:
        b, n, m, k of `tasks.ranking.tie_expectations`, each [b, M], a row's matches first and the rest
        undefined; and the number of gallery images that are not left out [b].
    """
    matched = distances.gather(1, columns)
    slack = source.slack(rows, columns, matched)
    low, high = (matched, matched) if slack is None else (matched - slack, matched + slack)
    low, high = (edges.masked_fill(~match, -torch.inf) for edges in (low, high))
    _leave_out(distances, columns, match | left_out)
    below, within = counts(distances, low, high)
    keys = matched.masked_fill(~match, torch.inf).double().cpu().numpy()
    decided = np.zeros(keys.shape, dtype=bool)
    if slack is not None:
        entries, results = (columns, match, left_out), (below, within, keys, decided)
        _compare_in_float64(source, rows.start, distances, entries, (low, high), results)
    kept = (distances.shape[1] - left_out.sum(1)).cpu().numpy()
    return _groups(below, within, keys, decided, match.cpu().numpy()), kept


def _compare_in_float64(
    source: DistanceSource,
    start: int,
    distances: Tensor,
    entries: tuple[Tensor, Tensor, Tensor],
    edges: tuple[Tensor, Tensor],
    results: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]],
) -> None:
    """Overwrite `results` by those of float64 distances for every match with neighbours between its edges.

    Args:
        start: the index of the block's first query.
        distances: values [b, G], infinite for matches and left-out images.
        entries: columns, match, left_out [b, M] from `Matches.block`. edges: low and high [b, M].
        results: arrays [b, M] of the number of entries below the low edge, of those up to the high edge, of the
            matches' values (infinite without a match), and of whether these were compared in float64.
    """
    (columns, match, left_out), (below, within, keys, decided) = entries, results
    uncertain = (within > below) | _has_equal(keys)
    number = (within - below).sum(1) + uncertain.any(1)
    many = np.flatnonzero(number > (MANY if distances.device.type == "cpu" else 0))
    for row in np.setdiff1d(np.flatnonzero(number), many).tolist():
        mask = uncertain[row]
        low, high = (edge[row].numpy()[mask] for edge in edges)
        exact = partial(source.exact, start + row)
        values, matches = distances[row].numpy(), columns[row].numpy()[mask]
        decided[row, mask] = True
        below[row, mask], within[row, mask], keys[row, mask] = _counts_of_uncertain(
            exact, values, matches, low, high, below[row, mask]
        )
    if len(many):
        chosen, decided[many] = torch.from_numpy(many).to(columns.device), True
        values_in_float64 = source.rows_in_float64((start + many).tolist())
        below[many], within[many], keys[many] = _counts_in_float64(
            values_in_float64, columns[chosen], match[chosen], left_out[chosen]
        )


def _has_equal(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the mask [b, M] of finite values that another match of the row has, too."""
    order = keys.argsort(axis=1)
    ordered, equal = np.take_along_axis(keys, order, axis=1), np.zeros(keys.shape, dtype=bool)
    same = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < np.inf)
    equal[:, 1:] |= same
    equal[:, :-1] |= same
    mask = np.empty_like(equal)
    np.put_along_axis(mask, order, equal, axis=1)
    return mask


def _leave_out(distances: Tensor, columns: Tensor, others: Tensor) -> None:
    distances[others.nonzero()[:, 0], columns[others]] = torch.inf


def _counts_in_float64(
    distances: Tensor, columns: Tensor, match: Tensor, left_out: Tensor
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the numbers of entries nearer than and up to each match, and its distance [n, M], of some queries.

    Args:
        distances: float64 [n, G]; overwritten.
    """
    matched = distances.gather(1, columns)
    edges = matched.masked_fill(~match, -torch.inf)
    _leave_out(distances, columns, match | left_out)
    below, within = counts(distances, edges, edges)
    return below, within, matched.masked_fill(~match, torch.inf).cpu().numpy()


def _counts_of_uncertain(
    exact: Callable[[NDArray[Any]], NDArray[Any]],
    values: NDArray[Any],
    matches: NDArray[Any],
    low: NDArray[Any],
    high: NDArray[Any],
    below: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the numbers of entries nearer than and up to each match of one query, and its exact distance [m].

    Args:
        exact: maps columns to distances in float64.
        values: values [G], infinite for matches and left-out images.
        matches: columns [m]. low, high: bounds [m] between which the order of an entry and a match is uncertain.
        below: the number [m] of entries below `low`.
    """
    close = [np.flatnonzero((values >= lower) & (values <= upper)) for lower, upper in zip(low, high)]
    columns = np.unique(np.concatenate(close))
    distances = exact(np.concatenate([matches, columns]))
    keys, entries = distances[: len(matches)], np.sort(distances[len(matches) :])
    # uncertain entries are counted again, all others are certainly below or above
    certain = below - np.sort(values[columns]).searchsorted(low)
    return certain + entries.searchsorted(keys), certain + entries.searchsorted(keys, "right"), keys


def _groups(
    below: NDArray[Any], within: NDArray[Any], keys: NDArray[Any], decided: NDArray[Any], match: NDArray[Any]
) -> list[NDArray[Any]]:
    """Return b, n, m, k [b, M] of each match from its nearer and equal entries that are no matches, and its distance.

    Distances in float64 (`decided`) are not on the scale of the others. Such matches never tie: their entries
    differ, or the order among them changes nothing.
    """
    order = np.lexsort((keys, decided, within, np.where(match, below, np.iinfo(np.int64).max)), axis=1)
    ordered = [np.take_along_axis(array, order, axis=1) for array in (below, within, keys, decided)]
    below, within = ordered[:2]
    place = np.broadcast_to(np.arange(order.shape[1]), order.shape)
    start = np.ones(order.shape, dtype=bool)
    start[:, 1:] = np.any([array[:, 1:] != array[:, :-1] for array in ordered], axis=0)
    first = np.maximum.accumulate(np.where(start, place, 0), axis=1)
    ends = np.ones(order.shape, dtype=bool)
    ends[:, :-1] = start[:, 1:]
    after = np.where(ends, place + 1, order.shape[1])
    last = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1]
    return [below + first, within - below + last - first, first, last - first]


def counts(values: Tensor, low: Tensor, high: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Count in each row of `values` [b, G] those below each of `low` [b, M], and those up to each of `high`."""
    if values.device.type != "cpu":
        return _counts_by_torch(values, low, high)
    below, within = (np.zeros(low.shape, dtype=np.int64) for _ in range(2))

    def count(rows: NDArray[Any]) -> None:
        for row in rows.tolist():
            below[row], within[row] = _counts_of_row(rows_of_values[row], lows[row], highs[row])

    # numpy sorts and compares bare values with vector instructions and without the interpreter's lock
    rows_of_values, lows, highs = (tensor.numpy() for tensor in (values, low, high))
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(count, np.array_split(np.arange(len(rows_of_values)), threads)))
    return below, within


def _counts_of_row(values: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    real = np.flatnonzero(high > -np.inf)
    near = values <= high.max()
    if len(real) * len(values) < SORTED * np.count_nonzero(near):
        below, within = np.zeros(low.shape, dtype=np.int64), np.zeros(low.shape, dtype=np.int64)
        for place in real.tolist():
            below[place] = np.count_nonzero(values < low[place])
            within[place] = np.count_nonzero(values <= high[place])
        return below, within
    ordered = np.sort(values[near])
    return ordered.searchsorted(low), ordered.searchsorted(high, "right")


def _counts_by_torch(values: Tensor, low: Tensor, high: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    ordered = values.sort(dim=1).values
    below, within = torch.searchsorted(ordered, low), torch.searchsorted(ordered, high, right=True)
    return below.cpu().numpy(), within.cpu().numpy()
