"""Linear probes on frozen features: least squares as in big_vision, and logistic regression by scikit-learn.

Letters: M support samples, N other samples, D channels, C classes.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backbones.pretrain.knn import weighted_knn

BIAS = 100.0
"""The constant feature appended last: so large that its weight is almost unregularised (big_vision)."""
EPSILON = 1e-5
"""Added to the standard deviations."""
ROWS = 1024
"""Samples that are predicted at a time."""
ITERATIONS = 1000
"""After which a fit of logistic regression ends, converged or not."""


class Fitted(Protocol):
    """A probe of one support set, for any strength of its regularisation."""

    unconverged: int
    """Fits so far that ended before they had converged; 0 where the solution is exact."""

    def predict(self, features: Tensor, strength: float) -> Tensor:
        """Classes [N], int64, of features [N, D]."""


def statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [D] and population standard deviation + 1e-5 [D] of features [M, D], in float64."""
    exact = features.double()
    return exact.mean(0), exact.std(0, correction=0) + EPSILON


def standardise(train: Tensor | NDArray[Any], test: Tensor | NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Both, [M, D] and [N, D], less the mean of `train`, over its population standard deviation + 1e-5, in float64.

    As big_vision does before its probe (evaluators/fewshot_lsr.py, where it is called whitening).
    """
    train, test = torch.as_tensor(train), torch.as_tensor(test)
    mean, std = statistics(train)
    return (train.double() - mean) / std, (test.double() - mean) / std


def ridge(features: Tensor | NDArray[Any], labels: Tensor | NDArray[Any], *, l2: float, classes: int) -> Tensor:
    """Weights [D + 1, C], float64, of regularised least squares on standardised features; the last row is the bias's.

    Args:
        features: [M, D]; standardised here by their own statistics, and 100 appended as the last feature.
        labels: [M], integers below `classes`; the targets are +1 for the class and -1 for all others.
        l2: times the identity is added to X^T X; above 0.

    Raises:
        ValueError: no samples, labels out of range, or `l2` not above 0.
    """
    return LeastSquares(torch.as_tensor(features), torch.as_tensor(labels), classes).weights(l2)


class LeastSquares:
    """Ridge regression of one support set, decomposed once for all strengths (big_vision, evaluators/fewshot_lsr.py).

    W = (X^T X + l2 I)^-1 X^T Y = X^T (X X^T + l2 I)^-1 Y; the smaller of the two matrices is taken apart.

    Args:
        features: [M, D]. labels: [M], integers below `classes`.
    """

    unconverged = 0

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        if not len(features) or len(features) != len(labels):
            raise ValueError(f"{len(features)} samples with {len(labels)} labels")
        if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(f"labels from {int(labels.min())} to {int(labels.max())}, but {classes} classes")
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
        """[D + 1, C], float64; `l2` above 0."""
        if not l2 > 0:
            raise ValueError(f"l2 {l2}: must be above 0")
        solution: Tensor = self.left @ (self.right / (self.values + l2)[:, None])
        return solution

    def predict(self, features: Tensor, strength: float) -> Tensor:
        """The class [N] with the highest output for features [N, D]; `strength` is l2."""
        weights = self.weights(strength)
        return torch.cat([(self._with_bias(part) @ weights).argmax(1) for part in _parts(features)])

    def _with_bias(self, features: Tensor) -> Tensor:
        # in one block of memory: features may take most of what there is
        x = features.new_empty(len(features), features.shape[1] + 1, dtype=torch.float64)
        x[:, :-1].copy_(features).sub_(self.mean).div_(self.std)
        x[:, -1] = BIAS
        return x


class Logistic:
    """Multinomial logistic regression with an L2 penalty on standardised features, by scikit-learn (L-BFGS).

    It minimises the sum of the support samples' losses + l2 / 2 times the squared weights; the bias is free.

    Args:
        features: [M, D]. labels: [M], integers below `classes`.
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        self.mean, self.std = statistics(features)
        self.x, self.labels = self._standardised(features), labels.cpu().numpy()
        self.unconverged = 0

    def predict(self, features: Tensor, strength: float) -> Tensor:
        """The most probable class [N] of features [N, D]; `strength` is l2, scikit-learn's 1 / C."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        if len(np.unique(self.labels)) < 2:
            return torch.full((len(features),), int(self.labels[0]))
        model = LogisticRegression(C=1 / strength, max_iter=ITERATIONS)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(self.x, self.labels)
        self.unconverged += any(issubclass(warning.category, ConvergenceWarning) for warning in raised)
        found = [model.predict(self._standardised(part)) for part in _parts(features)]
        return torch.from_numpy(np.concatenate(found))

    def _standardised(self, features: Tensor) -> NDArray[Any]:
        scaled: NDArray[Any] = ((features.double() - self.mean) / self.std).cpu().numpy()
        return scaled


class Neighbours:
    """Votes of the k nearest support samples by cosine similarity (see `weighted_knn`).

    Args:
        features: [M, D]. labels: [M], integers below `classes`.
        temperature: of the votes.
    """

    unconverged = 0

    def __init__(self, features: Tensor, labels: Tensor, classes: int, *, temperature: float) -> None:
        self.features, self.labels = features, labels
        self.classes, self.temperature = classes, temperature

    def predict(self, features: Tensor, strength: float) -> Tensor:
        """The class [N] with the most votes; `strength` is k, or all support samples where there are fewer."""
        k = min(int(strength), len(self.features))
        found = weighted_knn(
            self.features, self.labels, features, k=[k], temperature=self.temperature, classes=self.classes, top=1
        )
        return found[k][:, 0]


def best_strength(probe: Fitted, features: Tensor, labels: Tensor, strengths: Sequence[float]) -> float:
    """The strength with the highest accuracy on samples [N, D] that are neither support nor test.

    Of several the one in the middle of them, the lower of two.
    """
    hits = [int((probe.predict(features, strength) == labels).sum()) for strength in strengths]
    best = [strength for strength, count in zip(strengths, hits, strict=True) if count == max(hits)]
    return sorted(best)[(len(best) - 1) // 2]


def _parts(features: Tensor) -> Iterator[Tensor]:
    yield from features.split(ROWS)
