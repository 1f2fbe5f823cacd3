"""Linear probes on frozen features: least squares as in big_vision, and logistic regression by scikit-learn.

Shapes: M support samples, N other samples, D channels, C classes.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from backbones.pretrain.accuracy import weighted_knn
from transfer.task import Array

BIAS = 100.0
"""The constant feature appended last: so large that its weight is almost unregularised (big_vision)."""
STD_EPSILON = 1e-5
"""Constant that is added to the standard deviations."""
PREDICTED_ROWS = 1024
"""Number of samples that are predicted at a time."""
ITERATIONS = 1000
"""Largest number of iterations of a fit of logistic regression."""


class Fitted(Protocol):
    """A probe of one support set, for any strength of its regularisation."""

    unconverged: int
    """Number of fits so far that ended before convergence; 0 if the solution is exact."""

    def predict(self, features: Tensor, strength: float) -> Tensor:
        """Return the int64 classes [N] of features [N, D], on their device."""


def statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean [D] and population standard deviation + 1e-5 [D] of features [M, D], in float64."""
    exact = features.double()
    return exact.mean(0), exact.std(0, correction=0) + STD_EPSILON


def standardise(train: Tensor | Array, test: Tensor | Array) -> tuple[Tensor, Tensor]:
    """Standardise features [M, D] and [N, D] by the mean and population deviation + 1e-5 of `train`, in float64.

    As big_vision does before its probe (evaluators/fewshot_lsr.py, where it is called whitening).
    """
    train, test = torch.as_tensor(train), torch.as_tensor(test)
    mean, std = statistics(train)
    return (train.double() - mean) / std, (test.double() - mean) / std


def ridge(features: Tensor | Array, labels: Tensor | Array, *, l2: float, classes: int) -> Tensor:
    """Return the float64 weights [D + 1, C] of ridge regression on standardised features; the last row is the bias.

    Args:
        features: features [M, D], which are standardised by their own statistics; 100 is appended as last feature.
        labels: integers [M] below `classes`; the targets are +1 for the class and -1 for all others.
        l2: the factor, above 0, of the identity that is added to X^T X.

    Raises:
        RuntimeError: labels out of range, or not one for each sample. ValueError: `l2` is not above 0.
    """
    return LeastSquares(torch.as_tensor(features), torch.as_tensor(labels), classes).weights(l2)


class LeastSquares:
    """Ridge regression of one support set, decomposed once for all strengths (big_vision, evaluators/fewshot_lsr.py).

    W = (X^T X + l2 I)^-1 X^T Y = X^T (X X^T + l2 I)^-1 Y; the smaller of the two matrices is decomposed.

    Args:
        features: features [M, D]. labels: integers [M] below `classes`.
    """

    unconverged = 0

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        self.mean, self.std = statistics(features)
        x = self._with_bias(features)
        targets = 2.0 * torch.nn.functional.one_hot(labels.long(), classes).to(x) - 1.0
        if len(x) >= x.shape[1]:
            self.values, vectors = torch.linalg.eigh(x.T @ x)
            self.left, self.right = vectors, vectors.T @ (x.T @ targets)
        else:
            self.values, vectors = torch.linalg.eigh(x @ x.T)
            self.left, self.right = x.T @ vectors, vectors.T @ targets

    def weights(self, l2: float) -> Tensor:
        """Return the float64 weights [D + 1, C] for `l2` above 0."""
        if not l2 > 0:
            raise ValueError(f"l2 {l2}: must be above 0")
        return self.left @ (self.right / (self.values + l2)[:, None])

    def predict(self, features: Tensor, strength: float) -> Tensor:
        """Return the class [N] with the highest output for features [N, D]; `strength` is l2."""
        weights = self.weights(strength)
        return torch.cat([(self._with_bias(rows) @ weights).argmax(1) for rows in features.split(PREDICTED_ROWS)])

    def _with_bias(self, features: Tensor) -> Tensor:
        # in one block of memory: features may take most of what there is
        x = features.new_empty(len(features), features.shape[1] + 1, dtype=torch.float64)
        x[:, :-1].copy_(features).sub_(self.mean).div_(self.std)
        x[:, -1] = BIAS
        return x


class Logistic:
    """Multinomial logistic regression with an L2 penalty on standardised features, by scikit-learn (L-BFGS).

    It minimises the sum of the support samples' losses + l2 / 2 times the squared weights; the bias is not regularised.

    Args:
        features: features [M, D]. labels: integers [M] below `classes`.
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        self.mean, self.std = statistics(features)
        self.x, self.labels = self._standardised(features), labels.cpu().numpy()
        self.unconverged = 0

    def predict(self, features: Tensor, strength: float) -> Tensor:
        """Return the most probable class [N] of features [N, D]; `strength` is l2, scikit-learn's 1 / C."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=1 / strength, max_iter=ITERATIONS)
        with warnings.catch_warnings(record=True, action="always", category=ConvergenceWarning) as raised:
            model.fit(self.x, self.labels)
        self.unconverged += any(issubclass(warning.category, ConvergenceWarning) for warning in raised)
        parts = [torch.from_numpy(model.predict(self._standardised(rows))) for rows in features.split(PREDICTED_ROWS)]
        return torch.cat(parts).to(features.device)

    def _standardised(self, features: Tensor) -> Array:
        return ((features.double() - self.mean) / self.std).cpu().numpy()


class Neighbours:
    """Votes of the k nearest support samples by cosine similarity (see `weighted_knn`).

    Args:
        features: features [M, D]. labels: integers [M] below `classes`.
        temperature: the temperature of the votes.
        device: where they are counted; None is that of the features.
    """

    unconverged = 0

    def __init__(self, features: Tensor, labels: Tensor, classes: int, *, temperature: float, device: Any = None):
        self.features, self.labels = features.to(device or features.device), labels
        self.classes, self.temperature = classes, temperature

    def predict(self, features: Tensor, strength: float) -> Tensor:
        """Return the class [N] with the most votes; `strength` is k, at most the number of support samples."""
        k = min(int(strength), len(self.features))
        classes = weighted_knn(
            self.features, self.labels, features, k=[k], temperature=self.temperature, classes=self.classes, top=1
        )
        return classes[k][:, 0]


def best_strength(probe: Fitted, features: Tensor, labels: Tensor, strengths: Sequence[float]) -> float:
    """Return the strength with the highest accuracy on samples [N, D] that are neither support nor test samples.

    Of equal ones it is the median, the lower of two.
    """
    hits = [int((probe.predict(features, strength) == labels).sum()) for strength in strengths]
    best = [strength for strength, count in zip(strengths, hits, strict=True) if count == max(hits)]
    return sorted(best)[(len(best) - 1) // 2]
