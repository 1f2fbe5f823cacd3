"""Scores of tied matches: their expectation over all orders of the group that they tie in.

A group is b, the number of nearer gallery images; n, that of equally near ones; m, that of matches among the nearer;
and k, that of matches within the group. Importing it loads no torch: tables read the scores of finished runs by it.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


def expected_ap(
    b: NDArray[Any], n: NDArray[Any], m: NDArray[Any], k: NDArray[Any], *, rule: str = "rectangle"
) -> NDArray[Any]:
    """Return the expected precision that one match of the group contributes, shaped like `b`.

    Averaged over a query's matches this is AP. `rule` is the rule for the area under precision and recall:
    "rectangle" is the precision at the match; "trapezoid" its mean with the precision one rank earlier, which is 1
    before the first rank (the evaluation code published with Market-1501).
    """
    # before place u of the group, u (k - 1) / (n - 1) of the other k - 1 matches are expected, given a match at u
    slope = (k - 1) / np.maximum(n - 1, 1)
    here = _precision(m + 1, b + 1, slope, n)
    return here if rule == "rectangle" else (here + _precision(m, b, slope, n)) / 2


def _precision(hits: NDArray[Any], rank: NDArray[Any], slope: NDArray[Any], count: NDArray[Any]) -> NDArray[Any]:
    """Return the mean of (hits + slope u) / (rank + u) over u = 0 ... count - 1, where 0 / 0 is 1."""
    harmonic = _harmonic(1 << int((rank + count).max(initial=1)).bit_length())  # few sizes, so the cache serves
    before = np.maximum(rank - 1, 0)
    total = (harmonic[before + count] - harmonic[before]).astype(np.float64)
    tied = (slope * count + (hits - slope * rank) * total) / count
    mean = np.where(count == 1, hits / np.maximum(rank, 1), tied)
    return np.where(rank == 0, (1 + slope * (count - 1)) / count, mean)


@lru_cache(maxsize=1)
def _harmonic(size: int) -> NDArray[Any]:
    """Return the harmonic numbers H_0 ... H_size in extended precision: ranks multiply differences of neighbours."""
    return np.concatenate([[0], np.cumsum(1 / np.arange(1, size + 1, dtype=np.longdouble))])


def expected_cmc(b: NDArray[Any], n: NDArray[Any], k: NDArray[Any], max_rank: int) -> NDArray[Any]:
    """Return the chance of a match at rank 1 ... max_rank or before; the group is that of the first match, m = 0.

    Returns:
        Chances [Q, max_rank], never falling along a row.
    """
    place = np.arange(max_rank) - b[:, None]  # entries of the group that stand before each rank
    left = n[:, None] - place
    miss = np.maximum(left - k[:, None], 0) / np.maximum(left, 1)
    return 1 - np.cumprod(np.where(place < 0, 1.0, miss), axis=1)


def expected_inp(b: NDArray[Any], n: NDArray[Any], k: NDArray[Any], matches: NDArray[Any]) -> NDArray[Any]:
    """Return matches / rank of the last match, the inverse negative penalty (arXiv 2001.04193, section 4).

    The group is that of the last match. Its last match stands at place x with the chance C(x - 1, k - 1) / C(n, k).
    """
    # in a group of matches only, the last match is the last entry
    inp: NDArray[Any] = matches / (b + n)
    mixed = np.flatnonzero(n > k)
    if mixed.size:
        groups, group_of = np.unique(np.stack([b, n, k])[:, mixed], axis=1, return_inverse=True)
        means = np.array([_mean_inverse_last(*group) for group in groups.T.tolist()])
        inp[mixed] = matches[mixed] * means[group_of.reshape(-1)]
    return inp


def _mean_inverse_last(b: int, n: int, k: int) -> float:
    """Return the mean of 1 / (b + x), x the place of the last of k matches among n entries."""
    place = np.arange(n, k - 1, -1)
    # chance(n) = k / n and chance(x - 1) / chance(x) = (x - k) / (x - 1): no binomial that could overflow
    ratio = (place[:-1] - k) / (place[:-1] - 1)
    chance = k / n * np.concatenate([[1.0], np.cumprod(ratio)])
    return float((chance / (b + place)).sum())
