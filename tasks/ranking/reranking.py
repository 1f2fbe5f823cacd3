"""k-reciprocal re-ranking of a gallery (Zhong et al. 2017, arXiv 1701.08398), in bounded memory apart from its result.

Shapes: Q queries, G gallery images, N = Q + G images, D channels.
The sets and vectors of the paper are sparse matrices [N, N]: row i belongs to image i.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array
from torch import Tensor

from tasks.ranking.distances import as_matrix, blocks, centre, distinct


def rerank(
    query: Tensor | NDArray[Any],
    gallery: Tensor | NDArray[Any],
    *,
    k1: int = 20,
    k2: int = 6,
    lambda_value: float = 0.3,
) -> NDArray[Any]:
    """Return re-ranked distances: lambda d + (1 - lambda) Jaccard distance of k-reciprocal encodings (equation 12).

    d is the squared Euclidean distance of the features, divided by the image's largest, in float64. Distances and the
    nearest images are computed in blocks on the features' device, all else on the CPU. Which of several
    equally near images enters a neighbourhood is undefined.

    Args:
        query: features [Q, D].
        gallery: features [G, D].
        k1: the size of the neighbourhoods whose reciprocal neighbours encode an image.
        k2: the size of the neighbourhood over which encodings are averaged; 1 for none.
        lambda_value: the weight of the original distance, in [0, 1].

    Returns:
        float32 [Q, G], for `tasks.ranking.metrics.rank_distances`.

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
    # subtracting the mean keeps distances, and makes the rounding errors of products as small as they are
    features = features.double() - centre(gallery)
    with torch.inference_mode():
        nearest, largest, distances = _neighbours(features, max(k1 + 1, k2), len(query))
        encodings = _encodings(features, nearest[:, : k1 + 1], largest)
    if k2 > 1:
        encodings = _relation(nearest[:, :k2]) @ encodings / nearest[:, :k2].shape[1]
    return _blend(distances, encodings, lambda_value)


def _neighbours(features: Tensor, count: int, queries: int) -> tuple[NDArray[Any], Tensor, NDArray[Any]]:
    """Return the nearest images [N, count] of each, itself first, its largest distance [N], and d of queries [Q, G].

    Args:
        features: float64 [N, D]. count: the number of nearest images. queries: Q.
    """
    norms = features.square().sum(1)
    nearest = np.empty((len(features), min(count, len(features))), dtype=np.int64)
    largest = torch.empty_like(norms)
    distances = np.empty((queries, len(features) - queries), dtype=np.float32)
    for rows in blocks(len(features), 8 * len(features), features.device):
        # squared distances without the norm of the row, which does not change their order
        order = torch.addmm(norms, features[rows], features.T, alpha=-2)
        largest[rows] = order.amax(1) + norms[rows]
        query_values = order[: max(queries - rows.start, 0), queries:]
        query_rows = slice(rows.start, rows.start + len(query_values))
        scaled = (query_values + norms[query_rows, None]).clamp_(min=0) / largest[query_rows, None]
        distances[query_rows] = scaled.cpu().numpy()
        order.diagonal(rows.start).fill_(-torch.inf)
        nearest[rows] = order.topk(min(count, len(features)), largest=False).indices.cpu().numpy()
    return nearest, largest, distances


def _encodings(features: Tensor, nearest: NDArray[Any], largest: Tensor) -> csr_array:
    """Return encodings [N, N]: exp(-d) over the expanded reciprocal neighbours, of sum 1 (equations 3 and 7)."""
    reciprocal = _reciprocal(nearest)
    half = _reciprocal(nearest[:, : round((nearest.shape[1] - 1) / 2) + 1])  # of k1 + 1 images, each itself included
    # equation 5: a neighbour's half-sized set joins if more than two thirds of it are in the set already
    overlap = ((reciprocal @ half.T) * reciprocal).tocoo()
    sizes = half.sum(axis=1)
    joins = 3 * overlap.data > 2 * sizes[overlap.col]
    joining = csr_array((overlap.data[joins], (overlap.row[joins], overlap.col[joins])), shape=overlap.shape)
    expanded = (reciprocal + joining @ half).tocoo()
    weights = np.exp(-_distances_of_pairs(features, expanded.row, expanded.col, largest))
    sums = np.bincount(expanded.row, weights, len(nearest))
    return csr_array((weights / sums[expanded.row], (expanded.row, expanded.col)), shape=expanded.shape)


def _reciprocal(nearest: NDArray[Any]) -> csr_array:
    """Return a matrix [N, N] with 1 where two images are among each other's nearest."""
    relation = _relation(nearest)
    return relation * relation.T.tocsr()


def _relation(nearest: NDArray[Any]) -> csr_array:
    """Return a matrix [N, N] with 1 from each image to its nearest [N, k]."""
    images, count = nearest.shape
    places = np.arange(0, images * count + 1, count)
    return csr_array((np.ones(images * count), nearest.reshape(-1), places), shape=(images, images))


def _distances_of_pairs(features: Tensor, first: NDArray[Any], second: NDArray[Any], largest: Tensor) -> NDArray[Any]:
    """Return d between images `first` and `second`, divided by the largest distance of `first`."""
    distances = np.empty(len(first))
    for rows in blocks(len(first), 64 * features.shape[1], features.device):  # few, so that they stay in the cache
        left, right = (torch.from_numpy(index[rows]).to(features.device) for index in (first, second))
        squared = (features[left] - features[right]).square_().sum(1)
        distances[rows] = (squared / largest[left]).cpu().numpy()
    return distances


def _blend(distances: NDArray[Any], encodings: csr_array, lambda_value: float) -> NDArray[Any]:
    """Overwrite d [Q, G] by lambda d + (1 - lambda) (1 - sum of minima / sum of maxima) (equations 10 and 12).

    Encodings sum to 1, so their maxima sum to 2 less the sum of their minima.
    """
    queries, gallery = distances.shape
    columns = csc_array(encodings[queries:])
    for row, values in enumerate(distances):
        entries = slice(encodings.indptr[row], encodings.indptr[row + 1])
        starts = columns.indptr[encodings.indices[entries]]
        counts = columns.indptr[encodings.indices[entries] + 1] - starts
        # the concatenated entries of all columns in which the query has weight
        places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        smaller = np.minimum(columns.data[places], np.repeat(encodings.data[entries], counts))
        shared = np.bincount(columns.indices[places], smaller, gallery)
        values[:] = lambda_value * values + (1 - lambda_value) * (1 - shared / (2 - shared))
    return distances
