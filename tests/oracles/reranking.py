"""k-reciprocal re-ranking (Zhong et al. 2017, arXiv 1701.08398, section 3), one image at a time.

Shapes: Q queries, G gallery images, N = Q + G.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def reranked(query: NDArray[Any], gallery: NDArray[Any], *, k1: int, k2: int, weight: float) -> NDArray[Any]:
    """Return the distances [Q, G] of equation 12; `weight` is its lambda."""
    features = np.concatenate([query, gallery])
    distances = np.stack([((features - feature) ** 2).sum(1) for feature in features])
    if not distances.any():
        return np.zeros((len(query), len(gallery)))
    distances /= distances.max(axis=1, keepdims=True)
    own_first = distances.copy()
    np.fill_diagonal(own_first, -1)
    order = np.argsort(own_first, axis=1, kind="stable")
    encodings = np.stack([_encoding(image, order, distances, k1) for image in range(len(features))])
    encodings = np.stack([encodings[order[image, :k2]].mean(0) for image in range(len(features))])
    final = np.empty((len(query), len(gallery)))
    for row in range(len(query)):
        for column in range(len(gallery)):
            first, second = encodings[row], encodings[len(query) + column]
            jaccard = 1 - np.minimum(first, second).sum() / np.maximum(first, second).sum()
            final[row, column] = weight * distances[row, len(query) + column] + (1 - weight) * jaccard
    return final


def _reciprocal(image: int, order: NDArray[Any], k: int) -> set[int]:
    """Return the k-reciprocal neighbours of an image, itself among them (equation 2)."""
    return {other for other in order[image, : k + 1].tolist() if image in order[other, : k + 1].tolist()}


def _encoding(image: int, order: NDArray[Any], distances: NDArray[Any], k1: int) -> NDArray[Any]:
    """Return the encoding [N]: exp(-d) over the expanded reciprocal neighbours (equations 5 and 7), of sum 1."""
    first = _reciprocal(image, order, k1)
    members = set(first)
    half = round(min(k1, len(order) - 1) / 2)
    for other in first:
        theirs = _reciprocal(other, order, half)
        if 3 * len(theirs & first) > 2 * len(theirs):
            members |= theirs
    places = sorted(members)
    encoding = np.zeros(len(order))
    encoding[places] = np.exp(-distances[image, places])
    return encoding / encoding.sum()
