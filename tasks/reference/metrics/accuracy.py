"""Top-k accuracy of one image's outputs. Letters: C classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top_k(outputs: NDArray[Any], label: int, k: int) -> float:
    """Return the chance that the true class is among the k largest outputs [C], ties in random order."""
    above = sum(bool(value > outputs[label]) for value in outputs)
    level = sum(bool(value == outputs[label]) for value in outputs)
    return min(max(k - above, 0) / level, 1.0)


def top_k_bounds(outputs: NDArray[Any], label: int, k: int, error: float) -> tuple[float, float]:
    """Return the lowest and highest chance if every output may be off by `error`."""
    true_class = np.arange(len(outputs)) == label
    return top_k(outputs - np.where(true_class, 2 * error, 0), label, k), top_k(
        outputs + np.where(true_class, 2 * error, 0), label, k
    )
