"""The tie groups that the matches of a query fall into: how many gallery images are nearer, and how many as near.

A match's place is a count of nearer values, so that sorting values suffices: no argsort, no order of ties. What float32
cannot tell apart is decided in float64.
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
"""Comparing a row with as many edges takes as long as sorting it."""
MANY = 512
"""Entries of a query to be decided, beyond which all of its distances are computed in float64."""


class DistanceSource(Protocol):
    """Where distances come from; see `tasks.ranking.distances.Distances`, and `Given`."""

    def of(self, rows: slice) -> Tensor:
        """Values [b, G] in the order of the distances, that may be overwritten."""

    def slack(self, rows: slice, columns: Tensor, values: Tensor) -> Tensor | None:
        """How close to the values [b, M] another one may come that is not surely on one side; None: they are exact."""

    def exact(self, row: int, columns: NDArray[Any]) -> NDArray[Any]:
        """Distances of one query in float64."""

    def whole(self, rows: list[int]) -> Tensor:
        """Distances of some queries [n, G] in float64, up to a constant per query."""


class ExactDistances:
    """Distances [Q, G] that are exact as they are."""

    def __init__(self, distances: Tensor) -> None:
        self.distances = distances

    def of(self, rows: slice) -> Tensor:
        """A copy."""
        return self.distances[rows].clone()

    def slack(self, rows: slice, columns: Tensor, values: Tensor) -> None:
        """What is equal is equal."""

    def exact(self, row: int, columns: NDArray[Any]) -> NDArray[Any]:
        """Never asked for."""
        raise NotImplementedError

    def whole(self, rows: list[int]) -> Tensor:
        """Never asked for."""
        raise NotImplementedError


def tie_groups(
    source: DistanceSource, rows: slice, distances: Tensor, columns: Tensor, match: Tensor, left_out: Tensor
) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """The tie group of each match, matches in the order of their distances.

    Args:
        source: of the distances of all queries.
        rows: of the block.
        distances: [b, G], `source.of(rows)`; overwritten.
        columns, match, left_out: [b, M] as from `Matches.of`.

    Returns:
        b, n, m, k of `tasks.ranking.tie_expectations`, each [b, M], a row's matches first and the rest without
        meaning; and the number of gallery images that are not left out [b].
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
        entries, found = (columns, match, left_out), (below, within, keys, decided)
        _decide(source, rows.start, distances, entries, (low, high), found)
    kept = (distances.shape[1] - left_out.sum(1)).cpu().numpy()
    return _groups(below, within, keys, decided, match.cpu().numpy()), kept


def _decide(
    source: DistanceSource,
    start: int,
    distances: Tensor,
    entries: tuple[Tensor, Tensor, Tensor],
    edges: tuple[Tensor, Tensor],
    found: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]],
) -> None:
    """Puts what distances in float64 say into `found`, wherever a match has neighbours between its edges.

    Args:
        start: index of the block's first query.
        distances: [b, G], infinite for matches and for what is left out.
        entries: columns, match, left_out [b, M] as from `Matches.of`. edges: low and high [b, M].
        found: entries below the low edge, those up to the high edge, values of the matches, infinite where there is
            none, and whether they come from here [b, M].
    """
    (columns, match, left_out), (below, within, keys, decided) = entries, found
    unsure = (within > below) | _twins(keys)
    number = (within - below).sum(1) + unsure.any(1)
    many = np.flatnonzero(number > (MANY if distances.device.type == "cpu" else 0))
    for row in np.setdiff1d(np.flatnonzero(number), many).tolist():
        here = unsure[row]
        low, high = (edge[row].numpy()[here] for edge in edges)
        exact = partial(source.exact, start + row)
        values, which = distances[row].numpy(), columns[row].numpy()[here]
        decided[row, here] = True
        below[row, here], within[row, here], keys[row, here] = _decided(
            exact, values, which, low, high, below[row, here]
        )
    if len(many):
        some, decided[many] = torch.from_numpy(many).to(columns.device), True
        whole = source.whole((start + many).tolist())
        below[many], within[many], keys[many] = _in_float64(whole, columns[some], match[some], left_out[some])


def _twins(keys: NDArray[Any]) -> NDArray[Any]:
    """Whether another match of the row [b, M] has the same finite value."""
    order = keys.argsort(axis=1)
    ordered, equal = np.take_along_axis(keys, order, axis=1), np.zeros(keys.shape, dtype=bool)
    same = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < np.inf)
    equal[:, 1:] |= same
    equal[:, :-1] |= same
    found = np.empty_like(equal)
    np.put_along_axis(found, order, equal, axis=1)
    return found


def _leave_out(distances: Tensor, columns: Tensor, others: Tensor) -> None:
    distances[others.nonzero()[:, 0], columns[others]] = torch.inf


def _in_float64(
    distances: Tensor, columns: Tensor, match: Tensor, left_out: Tensor
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """How many entries are nearer than each match, how many not farther, and its distance [n, M], of some queries.

    Args:
        distances: [n, G], float64; overwritten.
    """
    matched = distances.gather(1, columns)
    edges = matched.masked_fill(~match, -torch.inf)
    _leave_out(distances, columns, match | left_out)
    below, within = counts(distances, edges, edges)
    return below, within, matched.masked_fill(~match, torch.inf).cpu().numpy()


def _decided(
    exact: Callable[[NDArray[Any]], NDArray[Any]],
    values: NDArray[Any],
    matches: NDArray[Any],
    low: NDArray[Any],
    high: NDArray[Any],
    below: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """How many entries are nearer than a query's match, how many not farther, and its exact distance [m].

    Args:
        exact: columns -> distances in float64.
        values: [G], infinite for matches and for what is left out.
        matches: [m], columns. low, high: [m], between which an entry may stand on either side of a match.
        below: [m], entries below `low`.
    """
    close = [np.flatnonzero((values >= one) & (values <= other)) for one, other in zip(low, high)]
    columns = np.unique(np.concatenate(close))
    distances = exact(np.concatenate([matches, columns]))
    keys, entries = distances[: len(matches)], np.sort(distances[len(matches) :])
    # entries looked at are counted anew, all others are surely below or above
    sure = below - np.sort(values[columns]).searchsorted(low)
    return sure + entries.searchsorted(keys), sure + entries.searchsorted(keys, "right"), keys


def _groups(
    below: NDArray[Any], within: NDArray[Any], keys: NDArray[Any], decided: NDArray[Any], match: NDArray[Any]
) -> list[NDArray[Any]]:
    """b, n, m, k of each match [b, M] from its nearer and equal entries that are no matches, and its distance.

    Distances that are decided are not on the scale of the others. Such matches never tie: their entries differ, or the
    order among them changes nothing.
    """
    order = np.lexsort((keys, decided, within, np.where(match, below, np.iinfo(np.int64).max)), axis=1)
    parts = [np.take_along_axis(array, order, axis=1) for array in (below, within, keys, decided)]
    below, within = parts[:2]
    place = np.broadcast_to(np.arange(order.shape[1]), order.shape)
    start = np.ones(order.shape, dtype=bool)
    start[:, 1:] = np.any([part[:, 1:] != part[:, :-1] for part in parts], axis=0)
    first = np.maximum.accumulate(np.where(start, place, 0), axis=1)
    ends = np.ones(order.shape, dtype=bool)
    ends[:, :-1] = start[:, 1:]
    after = np.where(ends, place + 1, order.shape[1])
    last = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1]
    return [below + first, within - below + last - first, first, last - first]


def counts(values: Tensor, low: Tensor, high: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """How many of each row of `values` [b, G] lie below each of `low` [b, M], and how many up to each of `high`."""
    if values.device.type != "cpu":
        return _counts_by_torch(values, low, high)
    below, within = (np.zeros(low.shape, dtype=np.int64) for _ in range(2))

    def count(rows: NDArray[Any]) -> None:
        for row in rows.tolist():
            below[row], within[row] = _counts_of_row(of[row], lows[row], highs[row])

    # numpy sorts and compares bare values with vector instructions and without the interpreter's lock
    of, lows, highs = (part.numpy() for part in (values, low, high))
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(count, np.array_split(np.arange(len(of)), threads)))
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
