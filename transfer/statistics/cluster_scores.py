"""What systems scored, cluster by cluster and seed by seed, and which of their seeds go together. Imports no torch.

Letters: B draws, C clusters, S seeds of a system.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ClusterScores:
    """What each cluster adds to the scores of a system."""

    sums: NDArray[Any]
    """[S, C] of its samples' values, over the samples of all clusters: they add up to the scores"""
    shares: NDArray[Any]
    """[S, C] of the samples: they add up to 1"""
    influence: NDArray[Any]
    """[S, C] by how much each cluster moves a score from where it is; of each seed they add up to 0"""

    @classmethod
    def of_sums(cls, sums: NDArray[Any], shares: NDArray[Any]) -> "ClusterScores":
        """Return parts from the sums and shares of the clusters."""
        return cls(sums, shares, sums - sums.sum(axis=1, keepdims=True) * shares)

    def with_constant(self, value: float, more: int) -> "ClusterScores":
        """With so many seeds more, all of whose samples have the same value."""
        shares = np.repeat(self.shares.mean(axis=0, keepdims=True), more, axis=0)
        added = (value * shares, shares, np.zeros_like(shares))
        return ClusterScores(*(np.concatenate(pair) for pair in zip((self.sums, self.shares, self.influence), added)))

    def of(self, places: Sequence[int]) -> "ClusterScores":
        """Return the parts of some seeds."""
        return ClusterScores(*(one[list(places)] for one in (self.sums, self.shares, self.influence)))


def common_seeds(seeds: Sequence[Sequence[object]]) -> list[list[int]] | None:
    """For each system the places of the seeds that all have, in one order; None where these are too few.

    They are enough where two or more, and more than half of each system's: one that broke down in one system leaves
    the others' pairs.
    """
    if len(seeds) < 2:
        return None
    common = [label for label in seeds[0] if all(label in one for one in seeds)]
    if len(common) < 2 or 2 * len(common) <= max(map(len, seeds)):
        return None
    return [[list(one).index(label) for label in common] for one in seeds]


@dataclass(frozen=True)
class WeightedSystems:
    """Systems with their weights in a contrast."""

    weights: NDArray[Any]
    scores: list[NDArray[Any]]
    drawn: list[NDArray[Any]]
    parts: list[ClusterScores] | None

    @property
    def dust(self) -> float:
        """What floating point leaves of predictions that are equal."""
        sizes = [np.abs(one).max(initial=np.abs(own).max()) for one, own in zip(self.drawn, self.scores, strict=True)]
        return float(64 * np.finfo(np.float64).eps * (np.abs(self.weights) * sizes).sum())

    def of(self, used: Sequence[Sequence[int]]) -> "WeightedSystems":
        """Some seeds of each system."""
        return WeightedSystems(
            self.weights,
            [one[list(own)] for one, own in zip(self.scores, used, strict=True)],
            [one[list(own)] for one, own in zip(self.drawn, used, strict=True)],
            self.parts and [one.of(own) for one, own in zip(self.parts, used, strict=True)],
        )

    def equal_in_pairs(self, dust: float) -> bool:
        """Whether within each seed all samples give a contrast of 0."""
        return bool(np.abs(self.contrasts([self._by_sample(place) for place in range(len(self.scores))])).max() <= dust)

    def within_pairs(self, dust: float) -> "WeightedSystems":
        """The contrast of each seed as one system's score."""
        score, draw = self.contrasts(self.scores), self.contrasts(self.drawn)
        if self.equal_in_pairs(dust):
            score, draw = np.zeros_like(score), np.zeros_like(draw)
        parts = None
        if self.parts:
            sums, influence = (
                self.contrasts([getattr(one, name) for one in self.parts]) for name in ("sums", "influence")
            )
            parts = [ClusterScores(sums, np.mean([one.shares for one in self.parts], axis=0), influence)]
        return WeightedSystems(np.ones(1), [score], [draw], parts)

    def _by_sample(self, place: int) -> NDArray[Any]:
        return self.drawn[place] if self.parts is None else self.parts[place].sums

    def contrasts(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.asarray(np.sum([c * one for c, one in zip(self.weights, values, strict=True)], axis=0))

    def of_single_runs(self, dust: float) -> NDArray[Any]:
        """[S', C]: what clusters add to the contrasts of one seed each, as far as all systems have one more."""
        assert self.parts is not None
        number = min(len(one.sums) for one in self.parts)
        found = self.contrasts([one.sums[:number] for one in self.parts])
        return np.where(np.abs(found) <= dust, 0.0, found)

    def estimate(self, dust: float) -> float:
        """The contrast of the means over seeds."""
        found = float(self.contrasts([one.mean() for one in self.scores]))
        return 0.0 if abs(found) <= dust else found

    def spread(self, dust: float) -> NDArray[Any]:
        """[B]: the draws of the contrast less their mean."""
        found = self.contrasts([one.mean(axis=0) for one in self.drawn])
        if found.size:
            found = found - found.mean()
            found[np.abs(found) <= dust] = 0.0
        return found
