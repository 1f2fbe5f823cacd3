"""Segmentation by a linear layer on frozen patch tokens: options, metrics, version; see `tasks.segment.training`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from backbones.spec import BackboneSpec
from tasks.labelled_images import Classification
from transfer.core.errors import reject
from transfer.core.options import Common, Execution, Range
from transfer.data.classification import MASKED, ClassificationData
from transfer.engine.options import TRAINING, FitOptions
from transfer.task import ByClass, Defaults, Metric, Outcomes, Scores

LOOKED_AT = 20
"""Images whose sides are looked at for `--size`."""


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
        """Return the next size that the patch divides."""
        patch = spec.patch or 1
        return {"size": (-(-options.size // patch) * patch, f"a multiple of the patch size {patch}")}

    def defaults_for_data(self, spec: BackboneSpec, dataset: ClassificationData, options: SegmentOptions) -> Defaults:
        """Return a batch size that fits few images, and at most twice the shorter side of the largest of the first
        validation images as size.
        """
        val = dataset.validation
        side = max(min(val.read(index).size) for index in range(min(len(val), LOOKED_AT)))
        size, _ = self.defaults_for_backbone(spec, replace(options, size=min(2 * side, options.size)), ())["size"]
        reason = f"twice the shorter side of the images, {side} pixels"
        return {**super().defaults_for_data(spec, dataset, options), "size": (size, reason)}

    def preprocessing(self, options: SegmentOptions) -> dict[str, Any]:
        """Return that images are resized, and cut into windows."""
        size = {"size": [options.size] * 2, "resize": options.size, "crop": "windows"}
        return {**size, "interpolation": "bilinear", "antialias": True}

    def content(self, dataset: ClassificationData, options: SegmentOptions) -> dict[str, Any]:
        """Return the classes, which the masks know as numbers alone."""
        return {"classes": list(dataset.classes)}

    def aggregated(self, names: Sequence[str], outcomes: Outcomes) -> Scores:
        """Return both scores, which are of all images together."""
        return self.rescore(outcomes)

    def by_class(self, names: Sequence[str], outcomes: Outcomes) -> ByClass:
        """Return the intersection over union of each class by its label, under `mIoU`."""
        from tasks.segment.scoring import by_class

        columns = zip(outcomes["labelled"].T > 0, by_class(outcomes).T, strict=True) if "mIoU" in names else ()
        found = {str(label): (images, {"mIoU": column}) for label, (images, column) in enumerate(columns)}
        return {label: of_class for label, of_class in found.items() if of_class[0].any()}


TASK = Segment()
