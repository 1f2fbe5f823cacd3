"""Linear probes: least squares as big_vision's evaluators/fewshot_lsr.py states it, and logistic regression.

Letters: M support images, D channels, C classes.
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
        outputs: NDArray[Any] = ((feature - self.mean) / self.std) @ self.weights + self.bias
        return outputs


def _standardised(features: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    mean, std = features.mean(0), features.std(0) + 1e-5
    return (features - mean) / std, mean, std


def ridge(features: NDArray[Any], labels: NDArray[Any], l2: float, classes: int) -> LinearProbe:
    """Solve ridge regression, (X^T X + l2 I)^-1 X^T Y, X standardised with 100 appended, Y +1 for the class else -1."""
    x, mean, std = _standardised(features)
    x = np.concatenate([x, np.full((len(x), 1), 100.0)], axis=1)
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    solution = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)
    return LinearProbe(mean, std, solution[:-1], 100 * solution[-1])


def logistic(features: NDArray[Any], labels: NDArray[Any], l2: float, classes: int) -> LinearProbe:
    """Minimise the sum of cross-entropies + l2 / 2 times the squared weights; the bias is not regularised."""
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    x, mean, std = _standardised(features)
    targets = (labels[:, None] == np.arange(classes)).astype(float)

    def loss(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        table = flat.reshape(-1, classes)
        logs = log_softmax(x @ table[:-1] + table[-1], axis=1)
        slope = np.exp(logs) - targets
        gradient = np.concatenate([x.T @ slope + l2 * table[:-1], slope.sum(0)[None]])
        return float(-(targets * logs).sum() + l2 / 2 * (table[:-1] ** 2).sum()), gradient.ravel()

    seen = np.unique(labels)  # a class without an image has no finite bias
    start = np.zeros((x.shape[1] + 1) * classes)
    options = {"maxiter": 100_000, "maxfun": 100_000, "gtol": 1e-9, "ftol": 0}
    table = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x.reshape(-1, classes)
    bias = np.where(np.isin(np.arange(classes), seen), table[-1], -np.inf)
    return LinearProbe(mean, std, table[:-1], bias)
