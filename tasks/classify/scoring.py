"""Accuracy of a trained classifier on a validation split. Nothing is trained.

Shapes: C classes of the weights, S classes of the data.
"""

from collections.abc import Sequence

from torch import Tensor

from backbones.backbone import Backbone, create
from backbones.pretrain import accuracy
from backbones.pretrain.accuracy import predict, restore
from backbones.spec import BackboneSpec
from backbones.weights.locate import find_weights
from tasks.classify.task import ClassifyOptions
from tasks.labelled_images import frozen_backbone
from transfer.core.errors import UserError, shortened
from transfer.data.classification import ClassificationData
from transfer.data.formats.folders import in_short
from transfer.engine.context import Context
from transfer.task import Result

__all__ = ["check", "predict", "restore", "run"]
IMAGENET_1K = 1000


def check(spec: BackboneSpec, dataset: ClassificationData, options: ClassifyOptions, context: Context) -> None:
    """Check that the weights hold a classifier of the data's classes."""
    try:
        find_weights(spec)
    except UserError:
        return  # said already
    choose_columns(create(spec, img_size=options.size, classes="trained"), dataset)


def run(spec: BackboneSpec, dataset: ClassificationData, options: ClassifyOptions, context: Context) -> Result:
    """Classify the validation split."""
    backbone = frozen_backbone(spec, options, context, classes="trained")
    columns, remark = choose_columns(backbone, dataset)
    if remark:
        context.note(remark)
    outcomes = accuracy.top_k(backbone, dataset.validation, options, context, columns)
    return accuracy.accuracies(outcomes), outcomes


def choose_columns(backbone: Backbone, dataset: ClassificationData) -> tuple[Tensor | None, str]:
    """Return the outputs that stand for the data's classes (see `top_k`), and notes about them for the record.

    Raises:
        UserError: the classifier was trained for other classes, or for the same in another order.
    """
    assert backbone.classes is not None
    theirs, ours, count = accuracy.trained_classes(backbone), dataset.classes, backbone.classes
    if theirs is None and count == len(ours):
        order = f"those of {dataset.name}, in order: {in_short(ours)}"
        return None, f"the weights do not name their {count} classes; taken to be {order}"
    theirs = theirs or accuracy.imagenet_synsets(count)
    if theirs is None:
        raise _other_classes(backbone, dataset, f"{count} there, {len(ours)} here")
    if theirs == ours:
        return None, ""
    if IMAGENET_1K <= count > len(ours) and {*ours} <= {*(accuracy.imagenet_synsets(IMAGENET_1K) or ())}:
        columns, missing = accuracy.class_columns(theirs, ours)
        if len(missing) < len(ours):
            best = f"each image gets the best of {len(ours) - len(missing)} classes of ImageNet-1k among {count}"
            return columns, f"{best}; missing: {shortened(missing) if missing else 'none'}"
    raise _other_classes(backbone, dataset, _difference(theirs, ours))


def _difference(theirs: Sequence[str], ours: Sequence[str]) -> str:
    if sorted(theirs) == sorted(ours):
        place = next(place for place, names in enumerate(zip(theirs, ours)) if names[0] != names[1])
        return f"the same, in another order: class {place} is {theirs[place]} there, {ours[place]} here"
    only_there, only_here = sorted({*theirs} - {*ours}), sorted({*ours} - {*theirs})
    there = f"{len(theirs)} there" + (f" ({shortened(only_there)} only)" if only_there else "")
    return there + f"; {len(ours)} here" + (f" ({shortened(only_here)} only)" if only_here else "")


def _other_classes(backbone: Backbone, dataset: ClassificationData, difference: str) -> UserError:
    return UserError(
        f"{backbone.spec.weights} was trained for other classes than those of {dataset.name}: {difference}. Name the "
        "dataset that it was trained on, or train a new classifier on these features: linear or finetune"
    )
