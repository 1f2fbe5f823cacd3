"""Scores of one variant by seed, with what each cluster of test samples adds to their variance. Imports no torch.

Shapes: B resamples, C clusters, S seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scores:
    """A score of each seed of one variant."""

    values: NDArray[Any]
    """[S] score of each seed on all samples."""
    influence: NDArray[Any]
    """[S, C or B] parts whose sum of squares is the score's variance over samples, given the trained model."""
    sums: NDArray[Any] | None
    """[S, C] part of each cluster in the score, its samples' sum over the number of all; None for AP."""
    shares: NDArray[Any]
    """[C] share of the samples that each cluster holds."""
    single: bool = False
    """Whether every cluster is one sample, of which the score is a mean."""
    resampled: NDArray[Any] | None = None
    """[S, B] values of a score that is not a mean, on resampled clusters."""

    @classmethod
    def of_clusters(cls, sums: NDArray[Any], counts: NDArray[Any]) -> "Scores":
        """Return scores that are means over samples.

        The influence of a cluster of n_c of N samples is (sum - score n_c) / N / sqrt(1 - n_c / N), so that their sum
        of squares is the bias-reduced variance CR2 (Bell and McCaffrey 2002, Survey Methodology 28:169).

        Args:
            sums: [S, C] sum of the values of each seed and cluster. counts: [C] samples of each cluster, all above 0.

        Raises:
            ValueError: fewer than two clusters, or a sum is not finite.
        """
        _check(len(counts), sums)
        shares, parts = counts / counts.sum(), sums / counts.sum()
        values = parts.sum(axis=1)
        influence = (parts - values[:, None] * shares) / np.sqrt(1 - shares)
        return cls(values, influence, parts, shares, bool((counts == 1).all()))

    @classmethod
    def of_resamples(cls, values: NDArray[Any], resampled: NDArray[Any], clusters: int) -> "Scores":
        """Return scores that are no means, such as AP, with their values on bootstrap resamples of the clusters.

        Args:
            values: [S] score of each seed. resampled: [S, B] its values, resample b equal for all seeds and variants.
            clusters: number C of clusters.

        Raises:
            ValueError: fewer than two clusters, or a value is not finite.
        """
        _check(clusters, values, resampled)
        scale = np.sqrt(clusters / (clusters - 1) / (resampled.shape[1] - 1))
        influence = (resampled - resampled.mean(axis=1, keepdims=True)) * scale
        return cls(values, influence, None, np.full(clusters, 1 / clusters), resampled=resampled)

    @property
    def df(self) -> float:
        """Degrees of freedom of a variance over the clusters, C - 1 if these are of one size.

        Bell and McCaffrey's (2002) of CR2 for clusters whose samples are alike: tr(M)^2 / tr(M^2), M = B B^T and B =
        (diag(h) - h h^T) / sqrt(1 - h) by rows, h the shares. M is written as diag(d) - u v^T - v u^T + q u u^T.
        """
        h, root = self.shares, np.sqrt(1 - self.shares)
        u, v, d, q = h / root, h**2 / root, h**2 / (1 - h), (h**2).sum()
        trace = d.sum() - 2 * (u @ v) + q * (u @ u)
        squares = (d**2).sum() - 4 * (d * u) @ v + 2 * q * (d * u) @ u
        squares += 2 * (u @ u) * (v @ v) + 2 * (u @ v) ** 2 - 4 * q * (u @ u) * (u @ v) + (q * (u @ u)) ** 2
        return float(trace**2 / squares)

    def merged(self, groups: Sequence[Sequence[int]]) -> "Scores":
        """Return a seed for each group of indices of seeds: the mean of these."""
        arrays = {name: getattr(self, name) for name in ("values", "influence", "sums", "resampled")}
        merged: dict[str, Any] = {
            name: np.stack([array[list(group)].mean(axis=0) for group in groups])
            for name, array in arrays.items()
            if array is not None
        }
        return replace(self, **merged)

    def with_constant(self, value: float, seeds: int) -> "Scores":
        """Return the scores with as many seeds more, whose samples all have this value."""
        rows = {"values": np.full(seeds, value), "influence": np.zeros((seeds, self.influence.shape[1]))}
        if self.sums is not None:
            rows["sums"] = np.tile(value * self.shares, (seeds, 1))
        if self.resampled is not None:
            rows["resampled"] = np.full((seeds, self.resampled.shape[1]), value)
        longer: dict[str, Any] = {name: np.concatenate([getattr(self, name), more]) for name, more in rows.items()}
        return replace(self, **longer)


def _check(clusters: int, *arrays: NDArray[Any]) -> None:
    if clusters < 2:
        raise ValueError(f"an interval needs at least 2 clusters, not {clusters}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("a score, or a part of one, is not a number")
