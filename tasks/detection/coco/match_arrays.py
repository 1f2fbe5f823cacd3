"""Pairs of detections and objects as flat arrays that a run keeps.

Shapes: N detections, G objects, I images, K categories, T = 10 IoU thresholds, A = 4 area ranges.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["bbox", "segm"]
PREFIX: dict[Kind, str] = {"bbox": "box", "segm": "mask"}


@dataclass(frozen=True, eq=False)
class Matches:
    """Result of pairing detections with objects: everything that `scores` needs, as flat arrays.

    Detections stand by category, falling score, image and rank: the order in which precision is added up. Those beyond
    the first 100 of an image and category have no influence and are left out.
    """

    kind: Kind
    sample: NDArray[Any]
    """File names [I] of the images, in the order of their ids."""
    categories: NDArray[Any]
    """Ids [K] of the categories, int64, rising."""
    image: NDArray[Any]
    """Index [N] of each detection's image in `sample`, int32."""
    category: NDArray[Any]
    """Index [N] of each detection's category in `categories`, int32."""
    score: NDArray[Any]
    """Score [N] of each detection, float64."""
    rank: NDArray[Any]
    """Rank [N] of each detection within its image and category, from 0, uint8."""
    matched: NDArray[Any]
    """Flags [N, A], uint16; bit t: the detection is paired with an object at threshold t."""
    ignored: NDArray[Any]
    """Flags [N, A], uint16; bit t: the detection is neither right nor wrong at threshold t."""
    truth_image: NDArray[Any]
    """Index [G] of each object's image in `sample`, int32."""
    truth_category: NDArray[Any]
    """Index [G] of each object's category in `categories`, int32."""
    truth_counted: NDArray[Any]
    """Flags [G], uint8; bit a: the object counts in area range a. Crowds count in none."""

    def outcomes(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, prefixed with the kind ("box_score"); `sample` has no prefix."""
        arrays = {f"{PREFIX[self.kind]}_{name}": getattr(self, name) for name in ARRAYS}
        return {"sample": self.sample, **arrays}

    @classmethod
    def from_outcomes(cls, outcomes: dict[str, NDArray[Any]], kind: Kind) -> "Matches":
        """Restore the matches from their `outcomes`; scores are bit-exact."""
        names = {name: f"{PREFIX[kind]}_{name}" for name in ARRAYS} | {"sample": "sample"}
        return cls(kind=kind, **{name: np.asarray(outcomes[saved]) for name, saved in names.items()})

    @cached_property
    def runs(self) -> NDArray[Any]:
        """Number [N], int64, of the run of detections with equal image, category and score that each is in."""
        ends = (np.diff(self.category) != 0) | (np.diff(self.score) != 0) | (np.diff(self.image) != 0)
        return np.concatenate([[0], np.cumsum(ends)])[: len(self.score)]


ARRAYS = tuple(entry.name for entry in fields(Matches) if entry.name not in ("kind", "sample"))
