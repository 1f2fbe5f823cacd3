"""Top-k accuracy of one image's outputs. Letters: C classes."""

from typing import Any

from numpy.typing import NDArray


def top_k(outputs: NDArray[Any], label: int, k: int) -> float:
    """Return the chance that the true class is among the k largest outputs [C], ties in random order."""
    above = sum(bool(value > outputs[label]) for value in outputs)
    level = sum(bool(value == outputs[label]) for value in outputs)
    return min(max(k - above, 0) / level, 1.0)
