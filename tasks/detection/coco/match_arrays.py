"""Which detections were paired with which objects, as flat arrays that a run keeps. Letters: N detections, G objects,
I images, K categories, T = 10 IoU thresholds, A = 4 area ranges."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["bbox", "segm"]
PREFIX: dict[Kind, str] = {"bbox": "box", "segm": "mask"}


@dataclass(frozen=True, eq=False)
class Matches:
    """What was paired with what. Everything `scores` needs, and nothing that is not a flat array.

    Detections stand by category, falling score, image and rank: the order in which precision is added up. Those beyond
    the first 100 of an image and category have no influence and are left out.
    """

    kind: Kind
    sample: NDArray[Any]
    """[I] file names, in the order of the images' ids"""
    categories: NDArray[Any]
    """int64 [K] ids, rising"""
    image: NDArray[Any]
    """int32 [N] index into `sample`"""
    category: NDArray[Any]
    """int32 [N] index into `categories`"""
    score: NDArray[Any]
    """float64 [N]"""
    rank: NDArray[Any]
    """uint8 [N] from 0, within image and category"""
    matched: NDArray[Any]
    """uint16 [N, A] bit t: paired with an object at threshold t"""
    ignored: NDArray[Any]
    """uint16 [N, A] bit t: neither right nor wrong at threshold t"""
    truth_image: NDArray[Any]
    """int32 [G] index into `sample`"""
    truth_category: NDArray[Any]
    """int32 [G] index into `categories`"""
    truth_counted: NDArray[Any]
    """uint8 [G] bit a: to be found in area range a; crowds in none"""

    def outcomes(self) -> dict[str, NDArray[Any]]:
        """The arrays under names that say the kind ("box_score"), `sample` under its own."""
        arrays = {f"{PREFIX[self.kind]}_{name}": getattr(self, name) for name in ARRAYS}
        return {"sample": self.sample, **arrays}

    @classmethod
    def from_outcomes(cls, outcomes: dict[str, NDArray[Any]], kind: Kind) -> "Matches":
        """The matches that `outcomes` was taken from; every score is the same to the bit.

        Raises:
            ValueError: if an array is missing.
        """
        names = {name: f"{PREFIX[kind]}_{name}" for name in ARRAYS} | {"sample": "sample"}
        if missing := [name for name in names.values() if name not in outcomes]:
            raise ValueError(f"outcomes of a detection lack {', '.join(missing)}")
        return cls(kind=kind, **{name: np.asarray(outcomes[saved]) for name, saved in names.items()})

    @cached_property
    def runs(self) -> NDArray[Any]:
        """int64 [N] numbers the runs of detections that share image, category and score."""
        ends = (np.diff(self.category) != 0) | (np.diff(self.score) != 0) | (np.diff(self.image) != 0)
        return np.concatenate([[0], np.cumsum(ends)])[: len(self.score)]


ARRAYS = tuple(entry.name for entry in fields(Matches) if entry.name not in ("kind", "sample"))
