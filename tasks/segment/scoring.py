"""Intersection over union and pixel accuracy, from counts of pixels by image and class.

A class that no pixel of the images has is left out of the mean (Everingham et al. 2010, The PASCAL VOC challenge, has
none such). mmsegmentation's `mIoU` leaves it out only if it is not predicted either, and else counts it as 0; both are
equal where each class has a pixel. Shapes: M images, C classes, B resamples.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.statistics.intervals import resample_counts
from transfer.task import Outcomes, Scores

COUNTS = ("intersection", "union", "labelled")
"""int64 [M, C]: pixels of the class that are found as such; of the class or found as such; of the class."""


def rescore(outcomes: Outcomes) -> Scores:
    """Return `mIoU`, the mean over classes, and `pixel_accuracy`, the share of all labelled pixels that are right.

    Both are of the pixels of all images together: an image counts by its pixels.
    """
    values = _weighted(outcomes, np.ones((1, len(outcomes["sample"]))))
    return {name: float(value[0]) for name, value in values.items()}


def resampled(outcomes: Outcomes) -> dict[str, NDArray[Any]]:
    """Return both on bootstrap resamples of the images [B], as "resampled_mIoU", of which intervals are made."""
    values = _weighted(outcomes, resample_counts(outcomes["sample"]))
    return {f"resampled_{name}": value for name, value in values.items()}


def by_class(outcomes: Outcomes) -> NDArray[Any]:
    """Return the intersection over union of each class [1 + B, C], first of the images, then of the resamples of
    `resampled`; nan where no pixel has the class.
    """
    counts = resample_counts(outcomes["sample"])
    right, union, labelled = _sums(outcomes, np.vstack([np.ones_like(counts[:1]), counts]))
    return np.divide(right, union, out=np.full_like(right, np.nan), where=labelled > 0)


def _weighted(outcomes: Outcomes, weights: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the scores [B] for weights [B, M] of the images."""
    right, union, labelled = _sums(outcomes, weights)
    shares = np.divide(right, union, out=np.zeros_like(right), where=labelled > 0)
    present = (labelled > 0).sum(1)
    return {"mIoU": shares.sum(1) / present, "pixel_accuracy": right.sum(1) / labelled.sum(1)}


def _sums(outcomes: Outcomes, weights: NDArray[Any]) -> list[NDArray[Any]]:
    """Return `COUNTS` [B, C] of all images for weights [B, M] of them."""
    return [weights @ outcomes[name].astype(np.float64) for name in COUNTS]
