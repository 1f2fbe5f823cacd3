"""Segmentation by a linear layer on frozen patch tokens: options, metrics, version; see `tasks.segment.training`.

Scores are made of counts of pixels by image and class. A class that no pixel of the images has is left out of the mean
(Everingham et al. 2010, The PASCAL VOC challenge, has none such). mmsegmentation's `mIoU` leaves it out only if it is
not predicted either, and else counts it as 0; both are equal where each class has a pixel.
Shapes: M images, C classes, B resamples.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from backbones.spec import BackboneSpec
from tasks.labelled_images import Classification
from transfer.core.errors import reject
from transfer.core.options import Common, Execution, Range
from transfer.data.classification import MASKED, ClassificationData
from transfer.engine.options import TRAINING, FitOptions
from transfer.statistics.intervals import resample_counts
from transfer.task import Array, ByClass, Defaults, Metric, Outcomes, Scores, Task

LOOKED_AT = 20
"""Images whose sides are looked at for `--size`."""
PIXEL_COUNTS = ("intersection", "union", "labelled")
"""int64 [M, C]: pixels of the class that are found as such; of the class or found as such; of the class."""


@dataclass(kw_only=True)
class SegmentOptions(FitOptions):
    """Options of `transfer.run segment` besides those of the training loop."""

    batch_size: Annotated[int, TRAINING, Range(1), Common()]
    """Images per step, over all ranks and micro-batches."""
    n_last_blocks: Annotated[int, Range(1), Common()]
    """Last blocks whose patch tokens are concatenated."""
    size: Annotated[int, Range(1), Common()]
    """Side of training crops in pixels. Scored images are resized to this shorter side, and cut into such windows."""
    scale: Annotated[tuple[float, float], TRAINING, Range(0, rising=True)]
    """Shorter side of training images before the crop, as a multiple of --size."""
    most_of_class: Annotated[float, TRAINING, Range(0, 1)]
    """Share of a crop's labelled pixels that one class should not reach. Ten crops are drawn at most."""
    flip: Annotated[float, TRAINING, Range(0, 1)]
    """Probability of a horizontal flip."""
    distort: Annotated[bool, TRAINING]
    """Change brightness, contrast, saturation and hue, each in half of the images."""
    eval_batch_size: Annotated[int, Range(1), Execution()]
    """Windows of an image per batch in evaluation, per rank."""


class Segment(Classification):
    """Mean over classes of intersection over union, and the share of pixels that are right."""

    module = "tasks.segment.training"
    name, version, options, primary = "segment", 1, SegmentOptions, "mIoU"
    metrics = {name: Metric() for name in ("mIoU", "pixel_accuracy")}  # noqa: RUF012
    formats = tuple(MASKED)

    def check_words(self, spec: BackboneSpec, options: SegmentOptions) -> None:
        """Check channels and size."""
        if spec.in_chans not in (1, 3):
            reject(f"--in-chans {spec.in_chans}: segment takes images of 1 or 3 channels")
        super().check_words(spec, options)

    def defaults_for_backbone(self, spec: BackboneSpec, options: SegmentOptions, given: Collection[str]) -> Defaults:
        """Return the next size that can be cut into patches: that of the weights is no guide here."""
        return Task.defaults_for_backbone(self, spec, options, given)

    def defaults_for_data(self, spec: BackboneSpec, dataset: ClassificationData, options: SegmentOptions) -> Defaults:
        """Return a batch size that fits few images, and at most twice the shorter side of the largest of the first
        validation images as size.
        """
        val = dataset.validation
        side = max(min(val.read(index).size) for index in range(min(len(val), LOOKED_AT)))
        size = spec.cover(min(2 * side, options.size))
        reason = f"twice the shorter side of the images, {side} pixels"
        return {**super().defaults_for_data(spec, dataset, options), "size": (size, reason)}

    def preprocessing(self, options: SegmentOptions) -> dict[str, Any]:
        """Return that images are resized, and cut into windows."""
        size = {"size": [options.size] * 2, "resize": options.size, "crop": "windows"}
        return {**size, "interpolation": "bilinear", "antialias": True}

    def content(self, dataset: ClassificationData, options: SegmentOptions) -> dict[str, Any]:
        """Return the classes, which the masks know as numbers alone."""
        return {"classes": list(dataset.classes)}

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Return `mIoU`, the mean over classes, and `pixel_accuracy`, the share of all labelled pixels that are right.

        Both are of the pixels of all images together: an image counts by its pixels.
        """
        values = _weighted(outcomes, np.ones((1, len(outcomes["sample"]))))
        return {name: float(value[0]) for name, value in values.items()}

    def aggregated(self, names: Sequence[str], outcomes: Outcomes) -> Scores:
        """Return both scores, which are of all images together."""
        return self.rescore(outcomes)

    def by_class(self, names: Sequence[str], outcomes: Outcomes) -> ByClass:
        """Return the intersection over union of each class by its label, under `mIoU`: first of the images, then of the
        resamples of `resampled`; nan where no pixel has the class.
        """
        if "mIoU" not in names:
            return {}
        counts = resample_counts(outcomes["sample"])
        right, union, labelled = _sums(outcomes, np.vstack([np.ones_like(counts[:1]), counts]))
        shares = np.divide(right, union, out=np.full_like(right, np.nan), where=labelled > 0)
        classes: ByClass = {}
        for label, images in enumerate(outcomes["labelled"].T > 0):
            if images.any():
                classes[str(label)] = (images, {"mIoU": shares[:, label]})
        return classes


def resampled(outcomes: Outcomes) -> dict[str, Array]:
    """Return both on bootstrap resamples of the images [B], as "resampled_mIoU", of which intervals are made."""
    values = _weighted(outcomes, resample_counts(outcomes["sample"]))
    return {f"resampled_{name}": value for name, value in values.items()}


def _weighted(outcomes: Outcomes, weights: Array) -> dict[str, Array]:
    """Return the scores [B] for weights [B, M] of the images."""
    right, union, labelled = _sums(outcomes, weights)
    shares = np.divide(right, union, out=np.zeros_like(right), where=labelled > 0)
    present = (labelled > 0).sum(1)
    return {"mIoU": shares.sum(1) / present, "pixel_accuracy": right.sum(1) / labelled.sum(1)}


def _sums(outcomes: Outcomes, weights: Array) -> list[Array]:
    """Return `PIXEL_COUNTS` [B, C] of all images for weights [B, M] of them."""
    return [weights @ outcomes[name].astype(np.float64) for name in PIXEL_COUNTS]


TASK = Segment()
