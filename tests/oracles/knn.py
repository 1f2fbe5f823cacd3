"""Weighted k-nearest-neighbour votes (Caron et al. 2021, arXiv 2104.14294, section 4.1), one test image at a time.

Shapes: M training images, C classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def similarities(train: NDArray[Any], test: NDArray[Any]) -> NDArray[Any]:
    """Return the cosines [M] of training features [M, D] with one test feature [D]."""
    norms = np.sqrt((train**2).sum(1)) * np.sqrt((test**2).sum())
    return np.divide((train * test).sum(1), norms, out=np.zeros(len(train)), where=norms > 0)


def votes(similarity: NDArray[Any], labels: NDArray[Any], k: int, temperature: float, classes: int) -> NDArray[Any]:
    """Return the logarithms of the votes [C]: of sums of exp(cosine / temperature) over the k nearest; of ties the
    earlier.
    """
    nearest = np.argsort(-similarity, kind="stable")[:k]
    totals = np.full(classes, -np.inf)
    for place in nearest.tolist():
        totals[labels[place]] = np.logaddexp(totals[labels[place]], similarity[place] / temperature)
    return totals


def class_rank(votes: NDArray[Any], label: int, top: int) -> int:
    """Return the rank from 0 of the true class by votes, ties by class number; `top` if it is not among the first."""
    order = np.argsort(-votes, kind="stable")[:top].tolist()
    return order.index(label) if label in order else top
