"""Recomputed scores beside the recorded ones, and the tolerances of their differences.

The tolerance of a score is not one number. The quantities that a run compares (distances, logits, votes) are known to
its precision only, so every sample gets the lowest and the highest value that an error of this size allows: two
neighbours nearer to each other than it may swap, all others must not. The tolerance of the score is the mean of these
intervals, and at most `SCORE_TOLERANCES` plus the weight of two samples: not all samples err in the same direction.
Letters: M samples, S of them recomputed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEATURE_ERRORS = {"fp64": 1e-12, "fp32": 4e-6, "fp16": 6e-3, "bf16": 5e-2}
"""Error of a feature that a network gives in a precision, as a fraction of its norm: four times the largest
measured with ViT-Ti and ViT-S (float32 1e-6, bfloat16 1.2e-2 after 12 blocks), since it grows with depth.
"""
SCORE_TOLERANCES = {"fp64": 1e-6, "fp32": 0.002, "fp16": 0.01, "bf16": 0.03}
"""Largest tolerance of a score, by the precision of the run. bfloat16 changed scores by up to 0.01 in measurements."""
ROUNDING = 1e-9
"""Tolerance of sums and means in float64."""


@dataclass(frozen=True)
class ScoreComparison:
    """A recorded score beside the recomputed one."""

    name: str
    recorded: float | None
    """Recorded value, or for a subset the mean of its samples' recorded scores; None if the run has no such score."""
    recomputed: float | None
    tolerance: float
    differing_samples: str = ""
    """Description of the samples whose recorded and recomputed scores differ; empty if there are none."""

    @property
    def difference(self) -> float:
        """Return the absolute difference of the two values; infinite if one is missing."""
        if self.recorded is None or self.recomputed is None:
            return float("inf")
        return abs(self.recorded - self.recomputed)

    @property
    def agrees(self) -> bool:
        """Return whether the difference is within the tolerance and no sample differs."""
        return self.difference <= self.tolerance and not self.differing_samples


@dataclass
class SampleScores:
    """Recomputed score of each sample with its lower and upper bound; nan for a sample that does not count."""

    scores: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, score: float, low: float, high: float) -> None:
        """Append the score of the next sample."""
        self.scores.append(score)
        self.low.append(low)
        self.high.append(high)


@dataclass
class Recomputed:
    """All score comparisons of a run."""

    source: str
    """Description of the weights or files that the scores were recomputed from, and of the number of samples."""
    rows: list[ScoreComparison] = field(default_factory=list)
    not_recomputed: list[str] = field(default_factory=list)
    """Descriptions of results that could not be recomputed, with the reason."""


def compare_mean(
    name: str,
    recorded: float | None,
    per_sample: NDArray[Any],
    recomputed: SampleScores,
    indices: NDArray[Any],
    names: NDArray[Any],
    precision: str,
) -> list[ScoreComparison]:
    """Compare a score that is a mean over samples, and return one or two comparisons.

    Args:
        recorded: the score in the record.
        per_sample: recorded scores [M] of all samples; nan for a sample that does not count.
        recomputed: scores of the S samples.
        indices: positions [S] of these samples among all M.
        names: names [M] of all samples.
        precision: the precision in which the run was scored.
    """
    anew, low, high = (np.array(x, dtype=float) for x in (recomputed.scores, recomputed.low, recomputed.high))
    by_run = per_sample[indices].astype(float)
    differs = np.isnan(by_run) != np.isnan(anew)
    differs |= (by_run < low - ROUNDING) | (by_run > high + ROUNDING)
    samples = ""
    if differs.any():
        first = int(np.flatnonzero(differs)[0])
        values_of_first = f"{names[indices[first]]} with {by_run[first]:.6g} for {anew[first]:.6g}"
        samples = f"{differs.sum()} of {len(differs)} samples, {values_of_first}"
    mean = float(np.nanmean(anew))
    bounds = max(float(np.nanmean(high)) - mean, mean - float(np.nanmean(low)), 0.0)
    tolerance = min(bounds, SCORE_TOLERANCES[precision] + 2 / len(indices)) + ROUNDING
    if len(indices) == len(per_sample):
        return [ScoreComparison(name, recorded, mean, tolerance, samples)]
    whole = ScoreComparison(
        f"{name}, mean of outcomes", recorded, float(np.nanmean(per_sample.astype(float))), ROUNDING
    )
    return [
        ScoreComparison(name, float(np.nanmean(by_run)), mean, tolerance, samples),
        *([] if whole.agrees else [whole]),
    ]


def first_difference(
    recorded: Mapping[str, float | None], recomputed: Mapping[str, float | None], names: Iterable[str], share: float
) -> str:
    """Describe the first of the named numbers that differ by more than the tolerance `share`; empty if none."""
    for name in names:
        first, second = recorded.get(name), recomputed.get(name)
        both = [np.nan if value is None else float(value) for value in (first, second)]
        if not np.isclose(both[0], both[1], rtol=share, atol=share, equal_nan=True):
            return f"{name} {first} for {second}"
    return ""
