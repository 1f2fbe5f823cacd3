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
    of_weights, of_data, count = accuracy.trained_classes(backbone), dataset.classes, backbone.classes
    if of_weights is None and count == len(of_data):
        order = f"those of {dataset.name}, in order: {in_short(of_data)}"
        return None, f"the weights do not name their {count} classes; taken to be {order}"
    of_weights = of_weights or accuracy.imagenet_synsets(count)
    if of_weights is None:
        raise _other_classes(backbone, dataset, f"{count} there, {len(of_data)} here")
    if of_weights == of_data:
        return None, ""
    if IMAGENET_1K <= count > len(of_data) and {*of_data} <= {*(accuracy.imagenet_synsets(IMAGENET_1K) or ())}:
        columns, missing = accuracy.class_columns(of_weights, of_data)
        if len(missing) < len(of_data):
            best = f"each image gets the best of {len(of_data) - len(missing)} classes of ImageNet-1k among {count}"
            return columns, f"{best}; missing: {shortened(missing) if missing else 'none'}"
    raise _other_classes(backbone, dataset, _difference(of_weights, of_data))


def _difference(of_weights: Sequence[str], of_data: Sequence[str]) -> str:
    if sorted(of_weights) == sorted(of_data):
        place = next(place for place, names in enumerate(zip(of_weights, of_data)) if names[0] != names[1])
        return f"the same, in another order: class {place} is {of_weights[place]} there, {of_data[place]} here"
    only_there, only_here = sorted({*of_weights} - {*of_data}), sorted({*of_data} - {*of_weights})
    classes = f"{len(of_weights)} there" + (f" ({shortened(only_there)} only)" if only_there else "")
    return classes + f"; {len(of_data)} here" + (f" ({shortened(only_here)} only)" if only_here else "")


def _other_classes(backbone: Backbone, dataset: ClassificationData, difference: str) -> UserError:
    return UserError(
        f"{backbone.spec.weights} was trained for other classes than those of {dataset.name}: {difference}. Name the "
        "dataset that it was trained on, or train a new classifier on these features: linear or finetune"
    )
