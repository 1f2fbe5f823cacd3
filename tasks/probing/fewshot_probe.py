"""Fits the probes of all support sets and scores them. Shapes: S support images needed, M test images, F channels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backbones.engine.context import Context
from backbones.runtime.dist import gather_objects
from backbones.runtime.finite import FLAT, check_finite, check_varied, constant_channels
from tasks.probes import Fitted, best_strength
from tasks.probing.support_sets import SupportSets

Fit = Callable[[Tensor, Tensor, int], Fitted]


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """Features and labels of the images that the probes need."""

    train: Tensor
    """Features [S, F] of the training images, float32."""
    train_labels: Tensor
    """Labels [S] of the training images, int64."""
    rows: NDArray[Any]
    """Index [S] of each among all training images, sorted."""
    test: Tensor
    """Features [M, F] of the test images."""
    test_labels: Tensor
    """Labels [M] of the test images."""
    classes: int
    """Number of classes."""
    train_names: Sequence[str]
    """File names of the S training images."""
    test_names: Sequence[str]
    """File names of the M test images."""

    def training(self, indices: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Return the features and labels of training images."""
        places = np.searchsorted(self.rows, indices)
        return self.train[places], self.train_labels[places]

    def facts(self, context: Context) -> dict[str, int]:
        """Return the number of channels, and of those that are constant over the test images."""
        constant = constant_channels(self.test, FLAT[context.eval_precision])
        return {"channels": self.test.shape[1], "constant_channels": int(constant.sum())}

    def check(self, context: Context) -> None:
        """Check that a probe can be fitted to the features. Raises NotFinite or NotVaried."""
        for name, rows, names in (("train", self.train, self.train_names), ("test", self.test, self.test_names)):
            check_finite(rows, names, f"features of the {name} images")
        check_varied(self.test, context.eval_precision, "test")
        check_varied(self.train, context.eval_precision, "training")


class Probed(NamedTuple):
    """Result of one support set's probe on the test images."""

    correct: NDArray[Any]
    """Whether each test image [M] is classified correctly, bool."""
    strength: float
    """Strength of the regularisation that was chosen."""
    unconverged: int
    """Number of fits that did not converge, including those for the choice of the strength."""


def probe_all(
    features: FrozenFeatures, sets: SupportSets, fit: Fit, strengths: tuple[float, ...], context: Context
) -> tuple[dict[str, NDArray[Any]], dict[str, list[float]], int]:
    """Probe every draw with every number of shots; ranks share the draws, and all return the same.

    Args:
        features: features of all images needed.
        sets: support sets of every draw.
        fit: function of support features, labels and number of classes that returns the probe.
        strengths: strengths of the regularisation; each probe takes the best on the draw's selection images.
        context: ranks and signals of the run.

    Returns:
        `correct_<k>shot` [M, draws], bool; for each of these names the strengths chosen, one per draw; and the number
        of fits that did not converge.
    """
    mine = range(context.ranks.rank, len(sets.orders), context.ranks.world)
    results: dict[int, dict[int, Probed]] = {}
    for draw in context.bar(mine, "probes", total=len(mine)):
        context.check_stop()
        results[draw] = {shots: _probe(features, sets, draw, shots, fit, strengths) for shots in sets.shots}
    for of_rank in gather_objects(results):
        results |= of_rank
    names = {shots: f"correct_{shots}shot" for shots in sets.shots}
    draws = range(len(sets.orders))
    correct = {
        name: np.stack([results[draw][shots].correct for draw in draws], axis=1) for shots, name in names.items()
    }
    chosen = {name: [results[draw][shots].strength for draw in draws] for shots, name in names.items()}
    return correct, chosen, sum(probed.unconverged for draw in draws for probed in results[draw].values())


def spread(accuracies: Sequence[float]) -> dict[str, Any]:
    """Return mean and spread of the accuracies of several draws, on the same test images, as plain values for a record.

    The variance is unbiased; it and the standard error of the mean are None for a single draw.
    """
    n, variance = len(accuracies), None if len(accuracies) < 2 else float(np.var(accuracies, ddof=1))
    error = None if variance is None else math.sqrt(variance / n)
    return {"draws": [*accuracies], "mean": float(np.mean(accuracies)), "standard_error": error, "variance": variance}


def _probe(
    features: FrozenFeatures, sets: SupportSets, draw: int, shots: int, fit: Fit, strengths: tuple[float, ...]
) -> Probed:
    support, labels = features.training(sets.support(draw, shots))
    probe = fit(support, labels, features.classes)
    strength = strengths[0]
    if len(strengths) > 1:
        strength = best_strength(probe, *features.training(sets.selection(draw)), strengths)
    correct = (probe.predict(features.test, strength) == features.test_labels).numpy()
    return Probed(correct, strength, probe.unconverged)
