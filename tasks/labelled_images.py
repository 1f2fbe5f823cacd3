"""Base of the tasks on labelled images: a dataset with a validation split, the evaluation transform, top-1 and top-5.

Shapes: M images, C classes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from backbones.pretrain.method import noted_backbone
from backbones.spec import BackboneSpec
from backbones.weights.locate import trained_size
from transfer.core.errors import UserError, reject
from transfer.core.options import Checked, Common, Execution, Range
from transfer.data.classification import READERS, ClassificationData, open_classification
from transfer.data.spec import DatasetSpec
from transfer.task import Defaults, Metric, Outcomes, Scores, Task, batch_for

if TYPE_CHECKING:
    from backbones.backbone import Backbone
    from transfer.engine.context import Context


@dataclass(kw_only=True)
class ViewOptions(Checked):
    """Options of the evaluation transform."""

    size: Annotated[int, Range(1), Common()]
    """Height and width of the centre crop in pixels; unless set, built-in tasks take that of the weights, if known."""
    resize: Annotated[int | None, Range(1)]
    """Shorter side of the image before that crop; unless set, in the recipe's proportion to --size. None:
    floor(size / 0.875)."""
    eval_batch_size: Annotated[int, Range(1), Execution()]
    """Images per batch where nothing is trained, per rank."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize is not None and self.resize < self.size:
            reject(f"--resize {self.resize}: below the --size {self.size} of the centre crop")


@dataclass(kw_only=True)
class FrozenOptions(ViewOptions):
    """Options of a task that trains no network."""

    eval_precision: Literal["fp32", "auto", "bf16", "fp16"]
    """Precision of the network. `auto` is bf16 where the machine has it, else fp32; fp32 is without TF32. What is
    computed from its outputs is always float32 or float64."""


def check_classes(data: ClassificationData) -> None:
    """Check that there are at least two classes. Raises UserError."""
    if len(data.classes) < 2:
        raise UserError(f"{data.name}: only one class, {data.classes[0]!r}; classification needs two or more")


def frozen_backbone(spec: BackboneSpec, options: Any, context: "Context", **overrides: Any) -> "Backbone":
    """Return the backbone of a task that does not train it, noted for the record; `overrides` are for `create`."""
    backbone = noted_backbone(spec, options, context, images=options.eval_batch_size, **overrides)
    return backbone.to(context.device).eval().requires_grad_(False)


class Classification(Task):
    """Base of the tasks that classify the validation images of a set.

    Attributes:
        trains: whether the training split is needed.
    """

    primary = "top1"
    metrics = {name: Metric() for name in ("top1", "top5", "macro_top1")}  # noqa: RUF012
    trains = True
    formats = tuple(READERS)

    def open(self, spec: DatasetSpec, options: Any, *, root: Path | None, **chosen: Any) -> ClassificationData:
        """Open labelled images with a validation split, and a training split if the task needs it.

        Raises:
            UsageError: a dataset of another kind.
            UserError: a split is missing or damaged.
        """
        share = ("label_fraction", "fraction_seed")
        chosen |= {name: getattr(options, name) for name in share if hasattr(options, name)}
        trained = self.trains and getattr(options, "epochs", None) != 0
        data = open_classification(spec, root, trained=trained, **chosen)
        for split in ("val", "train")[: 1 + self.trains]:
            data.needed(split, self.name)
        return data

    def defaults_for_backbone(self, spec: BackboneSpec, options: Any, given: Collection[str]) -> Defaults:
        """Return the size of the images that the weights were trained on, and `resize` in the recipe's proportion."""
        height, width = trained_size(spec) or (0, 0)
        if self.file or "size" in given or not height or height != width:
            return super().defaults_for_backbone(spec, options, given)
        resize = options.resize and options.resize * height // options.size
        return {"size": (height, "image size of the weights"), "resize": (resize, "in proportion to --size")}

    def defaults_for_data(self, spec: BackboneSpec, dataset: ClassificationData, options: Any) -> Defaults:
        """Return a batch size that fits a small training split, where the task trains by batches of it."""
        return batch_for(len(dataset.train or ()), options)

    def check(self, spec: BackboneSpec, dataset: ClassificationData, options: Any, context: "Context") -> None:
        """Check that the backbone takes images of this size."""
        from backbones.backbone import check_builds

        check_builds(spec, options.size)
        super().check(spec, dataset, options, context)

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Compute top-1 and top-5 accuracy from the ranks of the true classes, unless the task has its own."""
        if self.function("rescore"):
            return super().rescore(outcomes)
        from backbones.pretrain.accuracy import accuracies

        return accuracies(outcomes)
