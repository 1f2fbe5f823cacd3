"""The linear probe of least squares as big_vision's evaluators/fewshot_lsr.py states it.

Shapes: M support images, D channels, C classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LinearProbe:
    """A probe: outputs = (x - mean) / std weights + bias."""

    mean: NDArray[Any]
    """Means [D] of the support features."""
    std: NDArray[Any]
    """Standard deviations [D] of the support features."""
    weights: NDArray[Any]
    """Weights [D, C] of the standardised features."""
    bias: NDArray[Any]
    """Biases [C]."""

    def outputs(self, feature: NDArray[Any]) -> NDArray[Any]:
        """Return the outputs [C] for one feature [D]."""
        return ((feature - self.mean) / self.std) @ self.weights + self.bias


def ridge(features: NDArray[Any], labels: NDArray[Any], l2: float, classes: int) -> LinearProbe:
    """Solve ridge regression, (X^T X + l2 I)^-1 X^T Y, X standardised with 100 appended, Y +1 for the class else -1."""
    mean, std = features.mean(0), features.std(0) + 1e-5
    x = np.concatenate([(features - mean) / std, np.full((len(features), 1), 100.0)], axis=1)
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    solution = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)
    return LinearProbe(mean, std, solution[:-1], 100 * solution[-1])
