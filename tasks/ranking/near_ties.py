"""Ranks of matches by products in float32, and in float64 where their rounding errors leave an order open, on the CPU.

Shapes: Q queries, G gallery images, D channels, U distinct gallery features, b queries of one block, M gallery images
of a query's identity, k places to keep.
"""

from concurrent.futures import ThreadPoolExecutor
from math import frexp
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.ranking.distances import CACHED_ROWS, Distances

Array = NDArray[Any]
CHANNELS = 256  # number of channels that one product sums: fewer have smaller errors, more are faster
PARTS = 1 << 12  # number of parts of the range of values around a query's matches
MOST_OPEN = 16  # if more than one feature in so many is open to a query, products in float64 take less time


Ranks = tuple[Tensor, Array, Array, Array]
"""Of the matches of a block of queries: distances [b, M], the nearest first, infinite behind them; numbers [b, M] of
images of other identities nearer than each, and of those up to it; gallery columns [b, k] of the first places, -1
behind the last."""


class Float32Distances:
    """The values of `Distances` in float32, times `square`: a power of 4 by which the largest norm is about 1."""

    def __init__(self, exact: Distances) -> None:
        self.exact, self.copies = exact, exact.copies.numpy()
        self.images = np.bincount(self.copies).astype(np.float64)
        """Number [U] of images of each feature, in the type by which `bincount` weights."""
        self.square = 4.0 ** -(frexp(max(float(exact.norms.max()), float(exact.query_norms.max()), 1e-280))[1] // 2)
        self.products = -(-exact.unique.shape[1] // CHANNELS)
        self.query, self.gallery = self._scaled(exact.original[0], -2), self._scaled(exact.unique, 1)
        self.memory = torch.empty(self.products, 0, 0)
        self.norms = (exact.norms * self.square).float().numpy()
        # A sum of n products, in any order, is off by less than n u |q| |g| / (1 - n u), where u = 2^-24 (Higham 2002,
        # "Accuracy and Stability of Numerical Algorithms", section 3.1). Rounding of features, norms and sums adds u of
        # what is rounded, and of what is rounded to 0 less than 2^-90.
        summed, others, largest = self.query[0].shape[1], self.products + 4, exact.norms.max()
        errors = 2 * (summed + others) * (exact.query_norms * largest).sqrt() + others * largest
        self.slack = (1.01 * 2**-24 * errors * self.square + 2**-90).numpy()
        """A bound [Q] of the errors of the values."""

    def _scaled(self, features: Tensor, factor: float) -> tuple[Tensor, ...]:
        """Return parts [rows, at most CHANNELS] of the features, centred and scaled."""
        found = torch.empty(features.shape)
        for source, target in zip(features.split(CACHED_ROWS), found.split(CACHED_ROWS), strict=True):
            target.copy_((source - self.exact.mean).mul_(factor * self.square**0.5))
        return found.tensor_split(self.products, 1)

    def block(self, rows: slice) -> Array:
        """Return arrays [n, b, U] for a block of queries, whose sum and the gallery's norms are the values.

        The next call overwrites them, for new memory takes time.
        """
        if self.memory.shape[1] < (size := rows.stop - rows.start):
            self.memory = torch.empty(self.products, size + 1, len(self.norms))  # for all blocks, as they differ by 1
        for query, gallery, product in zip(self.query, self.gallery, self.memory, strict=True):
            torch.mm(query[rows], gallery.T, out=product[:size])
        return self.memory[:, :size].numpy()

    def in_float64(self, query: Array, features: Array) -> Array:
        """Return the values [n] in float64, scaled, of a centred query [D] and gallery features [n]."""
        centred = self.exact.unique.numpy().take(features, axis=0) - self.exact.mean.numpy()
        return (self.exact.norms.numpy()[features] - 2 * np.einsum("ij,j->i", centred, query)) * self.square


class NearTies:
    """Ranks in a block of queries.

    A gallery feature is open to a query if errors in float32 could move it past a match or the last place to keep.
    Matches and open features are compared in float64; the others are only counted.
    """

    def __init__(self, source: Float32Distances, rows: slice, own: tuple[Tensor, Tensor, Tensor], keep: int) -> None:
        """Take the columns [b, M] of each query's identity, and masks of matches and left-out images."""
        self.source, self.keep = source, keep
        self.columns, self.match, self.left_out = (tensor.numpy() for tensor in own)
        self.values, self.slack = source.block(rows), source.slack[rows]
        self.queries = (source.exact.original[0][rows] - source.exact.mean).numpy()
        self.distances = np.full(self.match.shape, np.inf)
        self.counts = np.zeros((2, *self.match.shape), dtype=np.int64)
        self.nearest = np.full((len(self.match), min(keep, len(source.copies))), -1)

    def ranks(self) -> Ranks | None:
        """Return the ranks; None if too many features are open to a query, or too near each other."""
        parts = np.array_split(np.arange(len(self.match)), torch.get_num_threads())
        with ThreadPoolExecutor(len(parts)) as pool:
            done = all(pool.map(self._count_rows, parts))
        return (torch.from_numpy(self.distances), *self.counts, self.nearest) if done else None

    def _count_rows(self, rows: Array) -> bool:
        images = self.source.images.copy()
        return all(self._count(row, images) for row in rows.tolist())

    def _count(self, row: int, images: Array) -> bool:
        """Rank the matches of a query; `images` is as `Float32Distances.images`, and left so."""
        source, query, slack = self.source, self.queries[row], self.slack[row]
        junk, matches = (self.columns[row][mask[row]] for mask in (self.left_out, self.match))
        own, matched, m = source.copies[np.append(junk, matches)], source.copies[matches], len(matches)
        values = self.values[0, row]
        for more in (*self.values[1:, row], source.norms):
            values += more
        edges = source.in_float64(query, matched)
        low, high = edges - slack, edges + slack
        if self.keep:
            # no nearer than the last place, whatever is left out, since so many groups have a value up to it
            places = min(self.keep + len(junk), len(values))
            groups = np.arange(0, len(values), max(len(values) // (16 * places), 1))
            last = np.partition(np.minimum.reduceat(values, groups), places - 1)[places - 1]
            low, high = np.append(low, -np.inf), np.append(high, last + 2 * slack)
        if not len(high):
            return True
        np.subtract.at(images, own, 1)
        features, closed = _between(low, high, slack, values, images)
        found = values[features].astype(np.float64)
        is_open = np.sort(low).searchsorted(found, "right") > np.sort(high).searchsorted(found)
        if np.count_nonzero(is_open) > 256 + len(values) // MOST_OPEN:
            return False
        found[is_open] = source.in_float64(query, features[is_open])
        order = found.argsort()
        counts, ordered = np.append(0, images[features[order]].cumsum()), found[order]
        np.add.at(images, own, 1)
        distances = found[features.searchsorted(matched)]  # not `edges`: sums of fewer rows may be rounded differently
        sides = [counts[ordered.searchsorted(distances, side)] for side in ("left", "right")]
        nearest = distances.argsort()
        self.distances[row, :m] = distances[nearest]
        self.counts[:, row, :m] = (closed[:m] + sides)[:, nearest]
        if self.keep:
            first = found <= high[-1]
            self._keep_nearest(row, features[first], found[first], junk)
        # what sums in float64 cannot tell apart either is ordered by products in float64
        return bool((np.diff(np.sort(found[is_open])) >= slack * 2**-32).all())

    def _keep_nearest(self, row: int, features: Array, values: Array, junk: Array) -> None:
        """Keep the first places among the images of features [n] with values [n]."""
        copies = self.source.copies
        columns = features if self.source.exact.all_differ else np.flatnonzero(np.isin(copies, features))
        columns = np.setdiff1d(columns, junk, assume_unique=True)  # in the gallery's order, which a stable sort keeps
        columns = columns[values[features.searchsorted(copies[columns])].argsort(kind="stable")[: self.keep]]
        self.nearest[row, : len(columns)] = columns


def _between(low: Array, high: Array, slack: float, values: Array, images: Array) -> tuple[Array, Array]:
    """Return the features between each `low` and `high` and some near them, and the images of others below each `low`.

    The range is divided into equal parts, by a function that never falls, in floating-point numbers either.

    Args:
        low, high: [n], the latter at least twice `slack` above the former, or infinitely.
        values, images: [U], the value and the number of images of each feature.
    """
    start = np.float32(high.min() - 3 * slack)
    scale = np.float32((PARTS - 1) / (high.max() - start))

    def part_of(numbers: Array) -> Array:
        return np.clip((numbers.astype(np.float32) - start) * scale + 1, 0, PARTS + 1).astype(np.intp)

    few = 2 * np.count_nonzero(values <= high.max()) < len(values)  # as of trained features
    near: Any = np.flatnonzero(values <= high.max()) if few else slice(None)
    first, last, parts = part_of(low), part_of(high), part_of(values[near])
    size = PARTS + 3
    is_open = np.cumsum(np.bincount(first, minlength=size) - np.bincount(last + 1, minlength=size)) > 0
    closed = np.cumsum(np.where(is_open, 0, np.bincount(parts, images[near], size)))
    features = np.flatnonzero(is_open.take(parts))
    return near[features] if few else features, closed[first]
