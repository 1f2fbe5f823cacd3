"""Top-k accuracy of one image's outputs. Letters: C classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top(outputs: NDArray[Any], label: int, k: int) -> float:
    """The chance that the true class is among the k largest of outputs [C], classes at one value in any order."""
    above = sum(bool(value > outputs[label]) for value in outputs)
    level = sum(bool(value == outputs[label]) for value in outputs)
    return min(max(k - above, 0) / level, 1.0)


def top_bounds(outputs: NDArray[Any], label: int, k: int, error: float) -> tuple[float, float]:
    """The same at worst and at best, where every output is known to `error` only."""
    own = np.arange(len(outputs)) == label
    return top(outputs - np.where(own, 2 * error, 0), label, k), top(outputs + np.where(own, 2 * error, 0), label, k)
