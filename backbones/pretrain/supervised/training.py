"""Supervised pretraining: a classifier on labelled images, as in DeiT, VOLO and big_vision.

The recipes are `configs/pretrain/{deit,volo,bigvision_i1k,bigvision_i21k,cifar_deit}.yaml`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from backbones.archs import VOLOS
from backbones.backbone import Backbone, check_builds, create
from backbones.pretrain.accuracy import accuracies, predict, restore, top_k
from backbones.pretrain.method import initial_backbone
from backbones.pretrain.supervised.learner import SupervisedLearner
from backbones.pretrain.supervised.method import METHOD, SupervisedOptions
from backbones.pretrain.supervised.token_labels import CropWithBox, LabelMaps
from backbones.spec import BackboneSpec
from transfer.core.errors import UsageError, UserError
from transfer.data.classification import ClassificationData, Split
from transfer.data.loading.augment import train_transform
from transfer.data.loading.loader import RunLoader, repeated_batches, shuffled_batches
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.task import Outcomes, Result, Scores

__all__ = ["check", "predict", "restore", "run"]


def check(spec: BackboneSpec, data: ClassificationData, options: SupervisedOptions, context: Context) -> None:
    """Check the backbone and the size, the batch and its parts, the number of images, and the label maps.

    Raises:
        UsageError: the words do not fit each other.
        UserError: the data does not fit them.
    """
    if len(data.classes) < 2:
        raise UserError(f"{data.name}: a classifier needs two classes; the images have {len(data.classes)}")
    check_builds(spec, options.size, classes=len(data.classes), drop_path=options.drop_path)
    if options.dense_weight and spec.kind != "user" and spec.arch not in VOLOS:
        raise UsageError(
            f"--dense-weight {options.dense_weight}: backbone {spec.name} has no classifier for its tokens; use "
            f"one of {', '.join(VOLOS)}, or --dense-weight 0"
        )
    train_transform(options.size, options, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    share = context.micro_batch(options.batch_size, options.grad_accum_steps)
    if options.mixes and options.mixing == "timm" and share % 2:
        raise UsageError(
            f"--batch-size {options.batch_size}: micro-batches of {share} images per rank; --mixup and --cutmix "
            "pair images within one: choose a batch size that makes this number even"
        )
    split = data.needed("train", METHOD.method)
    if not METHOD.epoch_steps(data, options):
        raise UserError(f"{data.name}: --batch-size {options.batch_size} is too large for {len(split)} training images")
    if options.token_labels is not None:
        LabelMaps(options.token_labels, split, len(data.classes))


def run(spec: BackboneSpec, data: ClassificationData, options: SupervisedOptions, context: Context) -> Result:
    """Train on the training split, score the validation split, and export."""
    learner, loader = prepare_training(spec, data, options, context)
    backbone, classes = learner.scored_backbone, list(data.classes)
    return METHOD.train_and_score(learner, backbone, loader, validate, data, options, context, classes=classes)


def prepare_training(
    spec: BackboneSpec, data: ClassificationData, options: SupervisedOptions, context: Context
) -> tuple[SupervisedLearner, RunLoader]:
    """Return the classifier that is trained, from the weights that `spec` names, and the loader of its batches."""
    images = context.micro_batch(options.batch_size, options.grad_accum_steps)
    given = {"classes": len(data.classes), "drop_path": options.drop_path}
    backbone = initial_backbone(spec, options, context, images=images, **given)
    split = data.needed("train", METHOD.method)
    counts = np.bincount(split.labels, minlength=len(data.classes))
    learner = SupervisedLearner(backbone, torch.from_numpy(counts / counts.sum()), options, context.seed)
    return learner, train_loader(split, backbone, options, context)


def untrained_learner(spec: BackboneSpec, options: SupervisedOptions) -> SupervisedLearner:
    """Return the backbone with a classifier of two classes."""
    backbone = create(spec, img_size=options.size, classes=2, weights="random", load="strict")
    return SupervisedLearner(backbone, torch.full((2,), 0.5), options, seed=0)


def rescore(outcomes: Outcomes) -> Scores:
    """Return top-1 and top-5 accuracy from per-image outcomes; nothing without a validation split."""
    return accuracies(outcomes) if outcomes else {}


def train_loader(split: Split, backbone: Backbone, options: SupervisedOptions, context: Context) -> RunLoader:
    """Return the loader of augmented images with their labels, and label maps if there are any."""
    maps = None
    if options.token_labels is not None:
        assert backbone.classes is not None
        maps = LabelMaps(options.token_labels, split, backbone.classes)
    transform = _transform(backbone, options)
    images = SplitDataset(split, transform, seed=context.seed, extra=maps)
    draw = shuffled_batches if options.repeats == 1 else partial(repeated_batches, repeats=options.repeats)
    batches = partial(draw, len(split), options.batch_size, seed=context.seed)
    return context.loader(images, batches, parts=options.grad_accum_steps, repeats=options.repeats)


def _transform(backbone: Backbone, options: SupervisedOptions) -> Any:
    mean, std = backbone.spec.mean, backbone.spec.std
    assert mean, "a built backbone knows its pixel statistics"
    assert std
    if options.token_labels is None:
        return train_transform(options.size, options, mean, std)
    # The crop's place is needed for its labels: what follows it gets an image that it need not crop.
    whole = replace(options, crop_area=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip=0.0)
    rest = train_transform(options.size, whole, mean, std)
    return CropWithBox(options.size, options.crop_area, options.crop_ratio, options.flip, options.interpolation, rest)


def validate(backbone: Backbone, data: ClassificationData, options: SupervisedOptions, context: Context) -> Outcomes:
    """Return outcomes of the validation split, empty without one. Raises NotFinite where a logit is not finite."""
    if data.val is None:
        return {}
    return top_k(backbone, data.val, options, context)
