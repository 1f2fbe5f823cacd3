"""Scores of systems by cluster and seed, and the seeds that systems have in common. Imports no torch.

Letters: B bootstrap resamples, C clusters, S seeds of a system.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ClusterScores:
    """Contributions of the clusters to the scores of a system."""

    sums: NDArray[Any]
    """[S, C] sum of each cluster's values divided by the number of all samples; the row sums are the scores."""
    shares: NDArray[Any]
    """[S, C] share of the samples that each cluster holds; the row sums are 1."""
    influence: NDArray[Any]
    """[S, C] influence of each cluster on the score, the sum less score times share; the row sums are 0."""

    @classmethod
    def of_sums(cls, sums: NDArray[Any], shares: NDArray[Any]) -> "ClusterScores":
        """Return the contributions of clusters with these sums [S, C] and shares [S, C]."""
        return cls(sums, shares, sums - sums.sum(axis=1, keepdims=True) * shares)

    def with_constant(self, value: float, more: int) -> "ClusterScores":
        """Return the contributions with `more` seeds appended whose samples all have the same value."""
        shares = np.repeat(self.shares.mean(axis=0, keepdims=True), more, axis=0)
        added = (value * shares, shares, np.zeros_like(shares))
        return ClusterScores(*(np.concatenate(pair) for pair in zip((self.sums, self.shares, self.influence), added)))

    def select(self, indices: Sequence[int]) -> "ClusterScores":
        """Return the contributions for the seeds at these indices."""
        rows = list(indices)
        return ClusterScores(self.sums[rows], self.shares[rows], self.influence[rows])


def common_seeds(seeds: Sequence[Sequence[object]]) -> list[list[int]] | None:
    """Return for each system the indices of the seeds that all systems share, in one order, or None if too few are.

    Two or more are enough if they are more than half of each system's seeds, so that a seed whose training broke down
    in one system leaves the pairs of the other seeds.
    """
    if len(seeds) < 2:
        return None
    common = [label for label in seeds[0] if all(label in labels for labels in seeds)]
    if len(common) < 2 or 2 * len(common) <= max(map(len, seeds)):
        return None
    return [[list(labels).index(label) for label in common] for labels in seeds]


@dataclass(frozen=True)
class WeightedSystems:
    """Systems with their weights in a contrast."""

    weights: NDArray[Any]
    """[K] coefficients of the systems' means."""
    scores: list[NDArray[Any]]
    """[S] scores of each system, one for each seed."""
    resampled: list[NDArray[Any]]
    """[S, B] scores of each system on resampled clusters."""
    clusters: list[ClusterScores] | None
    """Contributions of the clusters to the scores of each system."""

    @property
    def rounding_error(self) -> float:
        """Bound of the contrast that floating point leaves between equal predictions."""
        largest = [
            np.abs(resampled).max(initial=np.abs(scores).max())
            for resampled, scores in zip(self.resampled, self.scores, strict=True)
        ]
        return float(64 * np.finfo(np.float64).eps * (np.abs(self.weights) * largest).sum())

    def select(self, seeds: Sequence[Sequence[int]]) -> "WeightedSystems":
        """Return the systems with only the seeds at these indices of each."""
        return WeightedSystems(
            self.weights,
            [scores[list(indices)] for scores, indices in zip(self.scores, seeds, strict=True)],
            [resampled[list(indices)] for resampled, indices in zip(self.resampled, seeds, strict=True)],
            self.clusters and [system.select(indices) for system, indices in zip(self.clusters, seeds, strict=True)],
        )

    def equal_for_each_seed(self, rounding_error: float) -> bool:
        """Return whether every sample gives a contrast of 0 for every seed."""
        values = self.resampled if self.clusters is None else [system.sums for system in self.clusters]
        return bool(np.abs(self.contrasts(values)).max() <= rounding_error)

    def paired_differences(self, rounding_error: float) -> "WeightedSystems":
        """Return one system whose score for each seed is the contrast of that seed."""
        scores, resampled = self.contrasts(self.scores), self.contrasts(self.resampled)
        if self.equal_for_each_seed(rounding_error):
            scores, resampled = np.zeros_like(scores), np.zeros_like(resampled)
        clusters = None
        if self.clusters:
            sums = self.contrasts([system.sums for system in self.clusters])
            influence = self.contrasts([system.influence for system in self.clusters])
            shares = np.mean([system.shares for system in self.clusters], axis=0)
            clusters = [ClusterScores(sums, shares, influence)]
        return WeightedSystems(np.ones(1), [scores], [resampled], clusters)

    def contrasts(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the weighted sum over systems of arrays of one shape."""
        return np.asarray(np.sum([c * array for c, array in zip(self.weights, values, strict=True)], axis=0))

    def cluster_contrasts(self, rounding_error: float) -> NDArray[Any]:
        """Return [S', C], the clusters' contributions to the contrast of each seed that all systems have."""
        assert self.clusters is not None
        number = min(len(system.sums) for system in self.clusters)
        contrasts = self.contrasts([system.sums[:number] for system in self.clusters])
        return np.where(np.abs(contrasts) <= rounding_error, 0.0, contrasts)

    def estimate(self, rounding_error: float) -> float:
        """Return the contrast of the means over seeds."""
        contrast = float(self.contrasts([scores.mean() for scores in self.scores]))
        return 0.0 if abs(contrast) <= rounding_error else contrast

    def bootstrap_deviations(self, rounding_error: float) -> NDArray[Any]:
        """Return [B], the resampled contrasts less their mean."""
        contrasts = self.contrasts([resampled.mean(axis=0) for resampled in self.resampled])
        if contrasts.size:
            contrasts = contrasts - contrasts.mean()
            contrasts[np.abs(contrasts) <= rounding_error] = 0.0
        return contrasts
