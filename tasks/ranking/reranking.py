"""k-reciprocal re-ranking of a gallery (Zhong et al. 2017, arXiv 1701.08398), in bounded memory beside its result.

Letters: Q queries, G gallery images, N = Q + G images, D channels.
The sets and vectors of the paper are sparse matrices [N, N]: row i holds what belongs to image i.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array
from torch import Tensor

from tasks.ranking.distances import CACHED_ROWS, as_matrix, blocks, centre, distinct, full_precision


def rerank(
    query: Tensor | NDArray[Any],
    gallery: Tensor | NDArray[Any],
    *,
    k1: int = 20,
    k2: int = 6,
    lambda_value: float = 0.3,
) -> NDArray[Any]:
    """Re-ranked distances: lambda d + (1 - lambda) Jaccard distance of the k-reciprocal encodings (equation 12).

    d is the squared Euclidean distance of the features as given, divided by the image's largest. Before that
    division it is off by less than u (sqrt(D) + 20) (|q| + |g|)^2, with u = 2^-24 (2^-53 for float64 features) and
    norms of features less the gallery's mean. Neighbourhoods whose edge lies closer than that are found in float64,
    from the features as given. Where distances tie there, which images enter is not defined.

    Args:
        query: [Q, D] features.
        gallery: [G, D] features.
        k1: size of the neighbourhoods whose reciprocal part encodes an image.
        k2: size of the neighbourhood over which encodings are averaged; 1 for none.
        lambda_value: weight of the original distance, in [0, 1].

    Returns:
        [Q, G] float32, for `tasks.ranking.metrics.rank_distances`.

    Raises:
        ValueError: if shapes, types or values do not fit, or features are not finite.
    """
    if k1 < 1 or k2 < 1 or not 0 <= lambda_value <= 1:
        raise ValueError(f"k1 and k2 must be at least 1 and lambda_value in [0, 1], not {k1}, {k2} and {lambda_value}")
    query, gallery = as_matrix(query, "query features"), as_matrix(gallery, "gallery features")
    if query.shape[1] != gallery.shape[1]:
        raise ValueError(f"query and gallery must have the same channels, not {query.shape[1]} and {gallery.shape[1]}")
    features = torch.cat([query, gallery])
    if len(distinct(features)[0]) == 1:
        return np.zeros((len(query), len(gallery)), dtype=np.float32)
    # distances stay, and what products round off becomes as small as they are
    given, mean = features, centre(gallery)
    features = given - mean.to(given.dtype)
    with full_precision(features.device.type):
        edges = sorted({count for count in (k1 + 1, _half(k1 + 1), k2) if count < len(features)})
        nearest, largest, distances = _neighbours(features, (given, mean), max(k1 + 1, k2), edges, len(query))
        encodings = _encodings(features, nearest[:, : k1 + 1], largest)
    if k2 > 1:
        encodings = _relation(nearest[:, :k2]) @ encodings / nearest[:, :k2].shape[1]
    return _blend(distances, encodings, lambda_value)


def _neighbours(
    features: Tensor, given: tuple[Tensor, Tensor], count: int, edges: list[int], queries: int
) -> tuple[NDArray[Any], Tensor, NDArray[Any]]:
    """The nearest images [N, count] of each, itself first; its largest distance [N]; and d of the queries [Q, G].

    Args:
        features: less the gallery's mean. given: features as they came, and that mean.
        edges: sizes of neighbourhoods, below N.
    """
    norms = features.square().sum(1)
    nearest = np.empty((len(features), min(count, len(features))), dtype=np.int64)
    largest = torch.empty_like(norms)
    distances = np.empty((queries, len(features) - queries), dtype=np.float32)
    for rows in blocks(len(features), row_bytes=8 * len(features)):
        # squared distances less the row's own norm, which is added only where their size counts
        order = torch.addmm(norms, features[rows], features.T, alpha=-2)
        largest[rows] = order.amax(1) + norms[rows]
        of_queries = order[: max(queries - rows.start, 0), queries:]
        own = slice(rows.start, rows.start + len(of_queries))
        scaled = (of_queries + norms[own, None]).clamp_(min=0) / largest[own, None]
        distances[own] = scaled.cpu().numpy()
        order.diagonal(rows.start).fill_(-torch.inf)
        found = order.topk(min(count + 1, len(features)), largest=False)
        unsure = _unsure(found.values, norms[rows], norms.max(), features.shape[1], edges)
        places = found.indices[:, :count]
        if len(unsure):
            places[unsure] = _nearest_in_float64(*given, rows.start + unsure, count)
        nearest[rows] = places.cpu().numpy()
    return nearest, largest, distances


def _unsure(values: Tensor, norms: Tensor, largest: Tensor, channels: int, edges: list[int]) -> Tensor:
    """The rows of rising `values` [b, count + 1] that are as close at an edge as what a product rounds off."""
    steps = values[:, edges] - values[:, [edge - 1 for edge in edges]]
    error = (channels**0.5 + 20) * (norms.sqrt() + largest.sqrt()).square() * torch.finfo(values.dtype).eps
    rows: Tensor = (steps <= error[:, None]).any(1).nonzero().flatten()
    return rows


def _nearest_in_float64(given: Tensor, mean: Tensor, rows: Tensor, count: int) -> Tensor:
    """The `count` nearest images of these, each itself first, by products in float64."""
    own = given[rows].double() - mean
    parts = (part.double() - mean for part in given.split(CACHED_ROWS))
    order = torch.cat([torch.addmm(part.square().sum(1), own, part.T, alpha=-2) for part in parts], dim=1)
    order[torch.arange(len(rows), device=rows.device), rows] = -torch.inf
    return order.topk(min(count, len(given)), largest=False).indices


def _encodings(features: Tensor, nearest: NDArray[Any], largest: Tensor) -> csr_array:
    """The k-reciprocal encodings: exp(-d) over the expanded reciprocal neighbours, of sum 1 (equations 3 and 7)."""
    reciprocal = _reciprocal(nearest)
    half = _reciprocal(nearest[:, : _half(nearest.shape[1])])
    # equation 5: a neighbour's own half-sized set joins if more than two thirds of it are here already
    overlap = ((reciprocal @ half.T) * reciprocal).tocoo()
    sizes = half.sum(axis=1)
    joins = 3 * overlap.data > 2 * sizes[overlap.col]
    joining = csr_array((overlap.data[joins], (overlap.row[joins], overlap.col[joins])), shape=overlap.shape)
    expanded = (reciprocal + joining @ half).tocoo()
    weights = np.exp(-_distances_of_pairs(features, expanded.row, expanded.col, largest))
    sums = np.bincount(expanded.row, weights, len(nearest))
    return csr_array((weights / sums[expanded.row], (expanded.row, expanded.col)), shape=expanded.shape)


def _half(count: int) -> int:
    """Of a neighbourhood of k1 + 1 images, the image itself among them, the size of the half-sized one."""
    return round((count - 1) / 2) + 1


def _reciprocal(nearest: NDArray[Any]) -> csr_array:
    """1 where two images are among each other's nearest."""
    relation = _relation(nearest)
    return relation * relation.T.tocsr()


def _relation(nearest: NDArray[Any]) -> csr_array:
    """1 from each image to its nearest [N, k]."""
    images, count = nearest.shape
    places = np.arange(0, images * count + 1, count)
    return csr_array((np.ones(images * count), nearest.reshape(-1), places), shape=(images, images))


def _distances_of_pairs(features: Tensor, first: NDArray[Any], second: NDArray[Any], largest: Tensor) -> NDArray[Any]:
    """d between images `first` and `second`, divided by the largest of `first`."""
    distances = np.empty(len(first))
    for part in blocks(len(first), row_bytes=64 * features.shape[1]):  # few enough to stay in the cache
        one, other = (torch.from_numpy(index[part]).to(features.device) for index in (first, second))
        squared = (features[one] - features[other]).square_().sum(1)
        distances[part] = (squared / largest[one]).cpu().numpy()
    return distances


def _blend(distances: NDArray[Any], encodings: csr_array, lambda_value: float) -> NDArray[Any]:
    """lambda d + (1 - lambda) (1 - sum of minima / sum of maxima) (equations 10 and 12), over `distances` [Q, G].

    Encodings sum to 1, so their maxima sum to 2 less the sum of their minima.
    """
    queries, gallery = distances.shape
    columns = csc_array(encodings[queries:])
    for row, values in enumerate(distances):
        own = slice(encodings.indptr[row], encodings.indptr[row + 1])
        starts = columns.indptr[encodings.indices[own]]
        counts = columns.indptr[encodings.indices[own] + 1] - starts
        # the entries of all columns where the query has weight, end to end
        places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        smaller = np.minimum(columns.data[places], np.repeat(encodings.data[own], counts))
        shared = np.bincount(columns.indices[places], smaller, gallery)
        values[:] = lambda_value * values + (1 - lambda_value) * (1 - shared / (2 - shared))
    return distances
