"""k-nearest-neighbour classification: options, metrics, version; see `tasks.knn.scoring`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from backbones.spec import BackboneSpec
from tasks.labelled_images import Classification, FrozenOptions
from transfer.core.options import Common, Range
from transfer.data.classification import ClassificationData
from transfer.task import Defaults, Metric


@dataclass(kw_only=True)
class KnnOptions(FrozenOptions):
    """Options of `transfer.run knn`."""

    resize_mode: Literal["bicubic", "fast"]
    """How the image is resized before the centre crop. Bicubic as in DINO, or likewise on bytes (`fast`)."""
    k: Annotated[int, Range(1), Common()]
    """Neighbors for top1 and top5."""
    other_k: Annotated[tuple[int, ...], Range(1)]
    """Further numbers of neighbors, as top1_k<number>."""
    temperature: Annotated[float, Range(1e-9)]
    """Temperature of the votes."""


class Knn(Classification):
    """Top-1 and top-5 accuracy of the neighbours' votes."""

    module = "tasks.knn.scoring"
    name, version, options = "knn", 1, KnnOptions
    metrics = Classification.metrics | {name: Metric() for name in ("top1_k10", "top1_k100", "top1_k200")}

    def defaults_for_data(self, spec: BackboneSpec, dataset: ClassificationData, options: KnnOptions) -> Defaults:
        """Return the numbers of neighbors that the training split has."""
        images = len(dataset.train or ())
        other_k, reason = tuple(k for k in options.other_k if k <= images), f"there are {images} training images"
        return {"k": (min(options.k, images), reason), "other_k": (other_k, reason)}


TASK = Knn()
