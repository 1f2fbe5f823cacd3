"""Ranks of matches by products in float32, and in float64 where their rounding errors leave an order open, on the CPU.

Shapes: Q queries, G gallery images, D channels, U distinct gallery features, b queries of one block, M gallery images
of a query's identity, k places to keep, n features near a query.
"""

from concurrent.futures import ThreadPoolExecutor
from math import frexp
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tasks.ranking.distances import CACHED_ROWS, Distances
from transfer.task import Array

CHANNELS = 256  # number of channels that one product sums: fewer have smaller errors, more are faster
MOST_OPEN = 16  # if more than one feature in so many is open to a query, products in float64 take less time


class IdentityImages(NamedTuple):
    """The gallery images of the identity of each query of a block."""

    columns: Tensor
    """Gallery columns [b, M]; those beyond the query's last image have no meaning."""
    is_match: Tensor
    """Whether each is a match, bool [b, M]."""
    is_junk: Tensor
    """Whether each is left out, bool [b, M]."""


class MatchRanks(NamedTuple):
    """Ranks of the matches of a block of queries."""

    distances: Tensor
    """Distances [b, M] of the matches, the nearest first, infinite behind the last."""
    nearer: Array
    """Number [b, M] of images of other identities that are nearer than each match."""
    up_to: Array
    """Number [b, M] of images of other identities that are no farther than each match."""
    nearest: Array
    """Gallery columns [b, k] of the first places, -1 behind the last."""


class Float32Distances:
    """The values of `Distances` in float32, times `square`: a power of 4 by which the largest norm is about 1."""

    def __init__(self, exact: Distances) -> None:
        self.exact, self.copies = exact, exact.copies.numpy()
        self.images = np.bincount(self.copies)
        """Number [U] of images of each feature."""
        self.square = 4.0 ** -(frexp(max(float(exact.norms.max()), float(exact.query_norms.max()), 1e-280))[1] // 2)
        self.products = -(-exact.unique.shape[1] // CHANNELS)
        self.query, self.gallery = self._scaled(exact.original[0], -2), self._scaled(exact.unique, 1)
        self.memory = torch.empty(self.products, 0, 0)
        self.norms = (exact.norms * self.square).float().numpy()
        # A sum of n products, in any order, is off by less than n u |q| |g| / (1 - n u), where u = 2^-24 (Higham 2002,
        # "Accuracy and Stability of Numerical Algorithms", section 3.1). Rounding of features, norms and sums adds u of
        # what is rounded, and of what is rounded to 0 less than 2^-90.
        summed, roundings, largest = self.query[0].shape[1], self.products + 4, exact.norms.max()
        errors = 2 * (summed + roundings) * (exact.query_norms * largest).sqrt() + roundings * largest
        self.slack = (1.01 * 2**-24 * errors * self.square + 2**-90).numpy()
        """A bound [Q] of the errors of the values."""

    def _scaled(self, features: Tensor, factor: float) -> tuple[Tensor, ...]:
        """Return parts [rows, at most CHANNELS] of the features, centred and scaled."""
        scaled = torch.empty(features.shape)
        for source, target in zip(features.split(CACHED_ROWS), scaled.split(CACHED_ROWS), strict=True):
            target.copy_((source - self.exact.mean).mul_(factor * self.square**0.5))
        return scaled.tensor_split(self.products, 1)

    def block(self, rows: slice) -> Array:
        """Return arrays [products, b, U] for a block of queries, whose sum and the gallery's norms are the values.

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
    Matches and open features are compared in float64; the others are in the order of their values in float32.
    """

    def __init__(self, source: Float32Distances, rows: slice, images: IdentityImages, keep: int) -> None:
        self.source, self.keep = source, keep
        self.columns, self.is_match, self.is_junk = (tensor.numpy() for tensor in images)
        self.products, self.slack = source.block(rows), source.slack[rows]
        self.queries = (source.exact.original[0][rows] - source.exact.mean).numpy()
        self.distances = np.full(self.is_match.shape, np.inf)
        self.nearer, self.up_to = np.zeros((2, *self.is_match.shape), dtype=np.int64)
        self.nearest = np.full((len(self.is_match), min(keep, len(source.copies))), -1)

    def ranks(self) -> MatchRanks | None:
        """Return the ranks; None if too many features are open to a query, or too near each other."""
        parts = np.array_split(np.arange(len(self.is_match)), torch.get_num_threads())
        with ThreadPoolExecutor(len(parts)) as pool:
            done = all(pool.map(self._rank_rows, parts))
        return MatchRanks(torch.from_numpy(self.distances), self.nearer, self.up_to, self.nearest) if done else None

    def _rank_rows(self, rows: Array) -> bool:
        return all(self._rank(row) for row in rows.tolist())

    def _rank(self, row: int) -> bool:
        """Rank the matches of a query; return False if its order is left to products in float64."""
        source, query, slack = self.source, self.queries[row], self.slack[row]
        junk, matches = self.columns[row][self.is_junk[row]], self.columns[row][self.is_match[row]]
        matched = source.copies[matches]
        values = self.products[:, row].sum(0) + source.norms
        edges = source.in_float64(query, matched)
        low, high = edges - slack, edges + slack
        if self.keep:
            # as many features have a value up to this one as there are first places and images that are left out
            places = min(self.keep + len(junk), len(values))
            last = np.partition(values, places - 1)[places - 1] + 2 * slack
            low, high = np.append(low, -np.inf), np.append(high, last)
        if not len(high):
            return True
        near = np.flatnonzero(values <= high.max())
        near = near[values[near].argsort()]
        distances = values[near].astype(np.float64)
        is_open = _within(distances, low, high)
        if np.count_nonzero(is_open) > 256 + len(values) // MOST_OPEN:
            return False
        distances[is_open] = source.in_float64(query, near[is_open])
        order = distances.argsort(kind="stable")  # is quick, as open features alone have moved
        distance_of = np.full(len(values), np.inf)
        distance_of[near] = distances
        other_images = source.images - np.bincount(source.copies[np.append(junk, matches)], minlength=len(values))
        counts = np.append(0, other_images[near[order]].cumsum())
        # not `edges`: sums of fewer rows may be rounded differently
        self._keep_matches(row, np.sort(distance_of[matched]), distances[order], counts)
        if self.keep:
            self._keep_nearest(row, distance_of, last, junk)
        # what sums in float64 cannot tell apart either is ordered by products in float64
        return bool((np.diff(distances[order][is_open[order]]) >= slack * 2**-32).all())

    def _keep_matches(self, row: int, matches: Array, ordered: Array, counts: Array) -> None:
        """Keep the distances [m] of the matches, and how many of the n near features are nearer and no farther.

        Args:
            matches, ordered: rising distances [m] of the matches, and [n] of all near features.
            counts: number [n + 1] of other images of the first 0 ... n of these features.
        """
        places = slice(len(matches))
        self.distances[row, places] = matches
        self.nearer[row, places] = counts[ordered.searchsorted(matches, "left")]
        self.up_to[row, places] = counts[ordered.searchsorted(matches, "right")]

    def _keep_nearest(self, row: int, distances: Array, last: float, junk: Array) -> None:
        """Keep the first places among the images whose features [U] have distances up to `last`, but for `junk`."""
        copies = self.source.copies
        columns = np.flatnonzero(distances[copies] <= last)
        columns = np.setdiff1d(columns, junk, assume_unique=True)  # in the gallery's order, which a stable sort keeps
        columns = columns[distances[copies[columns]].argsort(kind="stable")[: self.keep]]
        self.nearest[row, : len(columns)] = columns


def _within(ordered: Array, low: Array, high: Array) -> Array:
    """Return which of rising values [n] lie within any of the ranges from `low` to `high`, bool [n]."""
    begins = np.bincount(ordered.searchsorted(low), minlength=len(ordered) + 1)
    ends = np.bincount(ordered.searchsorted(high, "right"), minlength=len(ordered) + 1)
    return np.cumsum(begins - ends)[:-1] > 0
