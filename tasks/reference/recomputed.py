"""What of a run was computed anew, beside what the run says, and how far apart the two may lie.

The tolerance of a score is not one number. What a run compares (distances, logits, votes) is known to its precision
only, so every sample gets the lowest and the highest value that a shift of this size allows: two neighbours that are
nearer than it may swap, all others must not. The tolerance of the score is the mean of these intervals, where that is
less than `MOST` and the weight of two samples: all samples do not move to the same side.
Letters: M samples, S of them looked at.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ERRORS = {"fp64": 1e-12, "fp32": 4e-6, "fp16": 6e-3, "bf16": 5e-2}
"""Error of a feature that a network gives in a precision, as a share of its length: four times the largest that was
seen of ViT-Ti and ViT-S (float32 1e-6, bfloat16 1.2e-2 behind 12 blocks), as it grows with depth.
"""
MOST = {"fp64": 1e-6, "fp32": 0.002, "fp16": 0.01, "bf16": 0.03}
"""Tolerance of a score, by the precision that it was scored in. bfloat16 was seen to move scores by up to 0.01; a run
that it moved further is named."""
ROUNDING = 1e-9
"""Tolerance of sums and means in float64."""


@dataclass(frozen=True)
class Row:
    """A score, twice."""

    name: str
    recorded: float | None
    """By the record; over the samples looked at, by the run's outcomes. None: the run has no such score."""
    recomputed: float | None
    tolerance: float
    samples: str = ""
    """Which samples the run and this statement score differently, in words."""

    @property
    def difference(self) -> float:
        """The difference of the two; infinite where one is missing."""
        if self.recorded is None or self.recomputed is None:
            return float("inf")
        return abs(self.recorded - self.recomputed)

    @property
    def agrees(self) -> bool:
        """Whether the two lie within the tolerance, and every sample within its own."""
        return self.difference <= self.tolerance and not self.samples


@dataclass
class Values:
    """A score of each sample, with its lowest and highest value; nan where a sample does not count."""

    found: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, found: float, low: float, high: float) -> None:
        """The next sample's."""
        self.found.append(found)
        self.low.append(low)
        self.high.append(high)


@dataclass
class Recomputed:
    """The rows of a run computed anew, what they were computed from, and what could not be computed."""

    source: str
    rows: list[Row] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What was not computed anew, and why."""


def compare(
    name: str,
    recorded: float | None,
    per_sample: NDArray[Any],
    values: Values,
    places: NDArray[Any],
    names: NDArray[Any],
    precision: str,
) -> list[Row]:
    """Rows of a score that is a mean over samples.

    Args:
        recorded: by the record.
        per_sample: [M] by the run's outcomes; nan where a sample does not count.
        values: of the S samples looked at.
        places: [S] of these among all M.
        names: [M] of the samples.
        precision: in which the run scored.
    """
    found, low, high = (np.array(column, dtype=float) for column in (values.found, values.low, values.high))
    by_run = per_sample[places].astype(float)
    differs = np.isnan(by_run) != np.isnan(found)
    differs |= (by_run < low - ROUNDING) | (by_run > high + ROUNDING)
    samples = ""
    if differs.any():
        first = int(np.flatnonzero(differs)[0])
        values_of_first = f"{names[places[first]]} with {by_run[first]:.6g} for {found[first]:.6g}"
        samples = f"{differs.sum()} of {len(differs)} samples, {values_of_first}"
    mean = float(np.nanmean(found))
    bounds = max(float(np.nanmean(high)) - mean, mean - float(np.nanmean(low)), 0.0)
    tolerance = min(bounds, MOST[precision] + 2 / len(places)) + ROUNDING
    if len(places) == len(per_sample):
        return [Row(name, recorded, mean, tolerance, samples)]
    whole = Row(f"{name}, mean of outcomes", recorded, float(np.nanmean(per_sample.astype(float))), ROUNDING)
    return [Row(name, float(np.nanmean(by_run)), mean, tolerance, samples), *([] if whole.agrees else [whole])]


def close(
    recorded: Mapping[str, float | None], recomputed: Mapping[str, float | None], names: Iterable[str], share: float
) -> str:
    """The first of these numbers that differ by more than a share of their size, in words; empty if none does."""
    for name in names:
        first, second = recorded.get(name), recomputed.get(name)
        both = [np.nan if value is None else float(value) for value in (first, second)]
        if not np.isclose(both[0], both[1], rtol=share, atol=share, equal_nan=True):
            return f"{name} {first} for {second}"
    return ""
