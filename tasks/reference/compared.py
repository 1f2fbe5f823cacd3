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
"""Of a score, for the precision that it was scored in. bfloat16 was seen to move scores by up to 0.01; a run that it
moved further is told so."""
ROUNDING = 1e-9
"""Of sums and means in float64."""


@dataclass(frozen=True)
class Row:
    """A score, twice."""

    name: str
    told: float | None
    """By the record; over the samples looked at, by the run's outcomes. None: the run has no such score."""
    found: float | None
    tolerance: float
    samples: str = ""
    """Which samples the run and this statement score differently, in words."""

    @property
    def difference(self) -> float:
        """Of the two; infinite where one is missing."""
        if self.told is None or self.found is None:
            return float("inf")
        return abs(self.told - self.found)

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
    """What came of it: the rows, what they were computed from, and what could not be."""

    source: str
    rows: list[Row] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What was not computed anew, and why."""


def compare(
    name: str,
    recorded: float | None,
    told: NDArray[Any],
    values: Values,
    places: NDArray[Any],
    names: NDArray[Any],
    precision: str,
) -> list[Row]:
    """Rows of a score that is a mean over samples.

    Args:
        recorded: by the record.
        told: [M] by the run's outcomes; nan where a sample does not count.
        values: of the S samples looked at.
        places: [S] of these among all M.
        names: [M] of the samples.
        precision: in which the run scored.
    """
    found, low, high = (np.array(column, dtype=float) for column in (values.found, values.low, values.high))
    mine = told[places].astype(float)
    odd = np.isnan(mine) != np.isnan(found)
    odd |= (mine < low - ROUNDING) | (mine > high + ROUNDING)
    said = ""
    if odd.any():
        first = int(np.flatnonzero(odd)[0])
        said = (
            f"{odd.sum()} of {len(odd)} samples, {names[places[first]]} with {mine[first]:.6g} for {found[first]:.6g}"
        )
    mean = float(np.nanmean(found))
    bounds = max(float(np.nanmean(high)) - mean, mean - float(np.nanmean(low)), 0.0)
    tolerance = min(bounds, MOST[precision] + 2 / len(places)) + ROUNDING
    if len(places) == len(told):
        return [Row(name, recorded, mean, tolerance, said)]
    whole = Row(f"{name}, mean of outcomes", recorded, float(np.nanmean(told.astype(float))), ROUNDING)
    return [Row(name, float(np.nanmean(mine)), mean, tolerance, said), *([] if whole.agrees else [whole])]


def close(
    told: Mapping[str, float | None], found: Mapping[str, float | None], names: Iterable[str], share: float
) -> str:
    """The first of these numbers that differ by more than a share of their size, in words; empty if none does."""
    for name in names:
        one, other = told.get(name), found.get(name)
        both = [np.nan if value is None else float(value) for value in (one, other)]
        if not np.isclose(both[0], both[1], rtol=share, atol=share, equal_nan=True):
            return f"{name} {one} for {other}"
    return ""
