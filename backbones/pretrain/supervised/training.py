"""Supervised pretraining: a classifier on labelled images, as in DeiT, VOLO and big_vision.

The recipes are `configs/pretrain/{deit,volo,bigvision_i1k,bigvision_i21k,cifar_deit}.yaml`.
Shapes: B images, C classes, K classes kept by a label map, h x w its places.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from backbones.archs import VOLOS
from backbones.backbone import Backbone, check_builds, create
from backbones.pretrain.accuracy import accuracies as rescore
from backbones.pretrain.accuracy import predict, restore, top_k
from backbones.pretrain.method import initial_backbone
from backbones.pretrain.supervised import losses
from backbones.pretrain.supervised.method import METHOD, SupervisedOptions
from backbones.pretrain.supervised.token_labels import CropWithBox, LabelMaps, crop_targets
from backbones.spec import BackboneSpec
from backbones.token_shards import Shards
from backbones.vit import share_tokens
from backbones.volo import random_box
from transfer.core.errors import UsageError, UserError
from transfer.data.classification import ClassificationData, Split, balanced_weights
from transfer.data.loading.augment import train_transform
from transfer.data.loading.images import collate_boxes
from transfer.data.loading.loader import RunLoader, repeated_batches, shuffled_batches
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.outcome import Signs
from transfer.task import Outcomes, Result


class WeightAverage(ModelEmaV3):
    """timm's moving average of a model, which DeiT uses, always in eval mode.

    average <- average + (1 - decay) * (value - average), from the initial weights on, for every floating-point entry of
    the state: parameters and batch-norm statistics alike. Counters are copied. What moves less than 6e-8 / (1 - decay)
    of its value in all is lost to float32.

    As a submodule of a learner it is saved and resumed with it; nothing in it is trained.

    Args:
        model: what is averaged; the average starts as a copy.
        decay: in [0, 1).
    """

    def __init__(self, model: nn.Module, decay: float):
        super().__init__(model, decay=decay)
        self.requires_grad_(False)
        self.masks = [name for name, buffer in self.module.named_buffers() if buffer.isinf().any()]

    def update(self, model: nn.Module, step: int | None = None) -> None:
        """Move the average towards a model; what is infinite from the beginning, as a mask, stays."""
        before = {name: self.module.get_buffer(name).clone() for name in self.masks}
        super().update(model, step)
        for name, mask in before.items():
            self.module.get_buffer(name).copy_(mask)

    def train(self, mode: bool = True) -> "WeightAverage":
        """Stay in eval mode."""
        return super().train(False)


class SupervisedLearner(Learner):
    """A backbone with a classifier under the loss of a recipe.

    Args:
        backbone: with a classifier of C outputs.
        prior: [C], the share of each class among the training images.
        options: the options of the recipe.
        seed: the seed of the run, for what is drawn alike on all ranks.
    """

    layered = "backbone"  # its classifier keeps the full rate

    def __init__(self, backbone: Backbone, prior: Tensor, options: SupervisedOptions, seed: int):
        super().__init__()
        self.backbone, self.options, self.seed = backbone, options, seed
        self.classes = len(prior)
        self.prior = prior
        balanced = options.class_weights == "balanced"
        weights = torch.from_numpy(balanced_weights(prior.numpy())).float() if balanced else None
        self.weights = None if weights is None else nn.Buffer(weights, persistent=False)
        head = classifier(backbone)
        bias = getattr(head, "bias", None)
        if isinstance(bias, Tensor):
            nn.init.constant_(bias, options.head_bias)
        self.average = None if options.ema is None else WeightAverage(backbone, options.ema)
        self.features = torch.empty(0)
        head.register_forward_pre_hook(self._keep_features)

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the loss of this rank's (images [B, 3, H, W], labels [B]).

        With token labels the images come as (images, boxes [B, 5]), and the maps [B, 2, K, h, w] after the labels.
        """
        images, labels, *maps = batch
        images, boxes = images if maps else (images, None)
        images, targets = losses.mix(images, labels, self.classes, self.options, seed=self.seed, step=step)
        if self.options.dense_weight:
            grid = (side // self.backbone.spec.divisor for side in images.shape[2:])
            box = random_box(*grid).to(images.device, non_blocking=True)
            return self._dense(images, targets, box, boxes, *maps)
        return self._loss_statistics(images, targets)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the model and its losses: a graph of the whole would keep the draws of the first step's mixture."""
        for name in ("_loss_statistics", "_dense"):
            setattr(self, name, torch.compile(getattr(self, name), *arguments, **options))

    def _loss_statistics(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        logits = self.backbone.logits(images)
        with torch.autocast(images.device.type, enabled=False):
            sigmoid = self.options.loss == "sigmoid"
            compare = losses.sigmoid_cross_entropy if sigmoid else losses.soft_target_cross_entropy
            parts = {"loss": compare(logits, self._weighted(targets)), "accuracy": _accuracy(logits, targets)}
            return {**parts, "spread": feature_spread(self.features.flatten(1))}

    def _dense(
        self, images: Tensor, targets: Tensor, box: Tensor, boxes: Tensor | None, maps: Tensor | None = None
    ) -> dict[str, Tensor]:
        class_logits, token_logits = self.backbone.dense_logits(images, box)
        with torch.autocast(images.device.type, enabled=False):
            token_targets = None
            if maps is not None and boxes is not None:
                side = math.isqrt(token_logits.shape[1])
                targets, token_targets = crop_targets(maps, boxes, self.classes, (side, side))
            wanted = self._weighted(targets), None if token_targets is None else self._weighted(token_targets)
            class_loss, token_loss = losses.token_label_losses(class_logits, token_logits, box, *wanted)
            loss = class_loss + self.options.dense_weight * token_loss
            parts = {"loss": loss, "class_loss": class_loss, "token_loss": token_loss}
            parts["accuracy"] = _accuracy(class_logits, targets)
            return {**parts, "spread": feature_spread(self.features.flatten(1))}

    def _weighted(self, targets: Tensor) -> Tensor:
        """Return targets [..., C] times the weights of the classes, as torch's cross-entropy has them."""
        return targets if self.weights is None else targets * self.weights

    def _keep_features(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.features = inputs[0].detach()

    def averages(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the average of the weights, which averages the backbone."""
        return [] if self.average is None else [(self.average.module, self.backbone)]

    def share_tokens(self, ranks: int) -> None:
        """Shard tokens across ranks in the backbone's blocks."""
        share_tokens(self.backbone.model, Shards(ranks))

    def signs(self) -> Signs:
        """Return the loss with its level under the best constant prediction: the entropy of the training labels under
        softmax, ln C for equal classes. Mixing images leaves it as it is.
        """
        smoothed = (1 - self.options.smoothing) * self.prior + self.options.smoothing / self.classes
        weighted = smoothed if self.weights is None else smoothed * self.weights.cpu()
        total = 1.0 if self.weights is None else float(weighted.sum())
        level = total * losses.constant_loss(weighted / total, sigmoid=self.options.loss == "sigmoid")
        name = "class_loss" if self.options.dense_weight else "loss"
        return Signs(statistic=name, chance=level, accuracy=float(self.prior.max()))

    def after_step(self, step: int) -> None:
        """Move the average of the weights."""
        if self.average is not None:
            self.average.update(self.backbone)

    @property
    def scored_backbone(self) -> Backbone:
        """The backbone that is evaluated and exported: as trained, or averaged."""
        model = self.backbone if self.average is None or self.options.export == "raw" else self.average.module
        assert isinstance(model, Backbone)
        return model


def _accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the share of logits [B, C] whose largest is that of the targets [B, C]."""
    return (logits.detach().argmax(1) == targets.argmax(1)).float().mean()


def classifier(backbone: Backbone) -> nn.Module:
    """Return the layer that turns the pooled features of a backbone into logits.

    Raises:
        UserError: there are several, as in models for distillation.
    """
    layer = backbone.head if backbone.head is not None else backbone.model.get_classifier()
    if not isinstance(layer, nn.Module):
        raise UserError(f"backbone {backbone.spec.name}: {backbone.spec.arch} has more than one classifier")
    return layer


__all__ = ["check", "predict", "rescore", "restore", "run"]


def check(spec: BackboneSpec, data: ClassificationData, options: SupervisedOptions, context: Context) -> None:
    """Check the backbone and the size, the batch and its parts, the number of images, and the label maps.

    Raises:
        UsageError: the words do not fit each other.
        UserError: the data does not fit them.
    """
    if len(data.classes) < 2:
        raise UserError(f"{data.name}: a classifier needs two classes; the images have {len(data.classes)}")
    check_builds(spec, options.size, classes=len(data.classes), drop_path=options.drop_path)
    if options.dense_weight and spec.arch not in VOLOS:
        fix = f"use one of {', '.join(VOLOS)}, or --dense-weight 0"
        fault = f"backbone {spec.name} has no classifier for its tokens"
        raise UsageError(f"--dense-weight {options.dense_weight}: {fault}; {fix}")
    train_transform(options.size, options, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    share = context.micro_batch(options.batch_size, options.grad_accum_steps)
    if options.mixes and options.mixing == "timm" and share % 2:
        fix = "--mixup and --cutmix pair images within one: choose a batch size that makes this number even"
        raise UsageError(f"--batch-size {options.batch_size}: micro-batches of {share} images per rank; {fix}")
    split = data.needed("train", METHOD.method)
    if not METHOD.epoch_steps(data, options):
        raise UserError(f"{data.name}: --batch-size {options.batch_size} is too large for {len(split)} training images")
    if options.token_labels is not None:
        LabelMaps(options.token_labels, split, len(data.classes))


def run(spec: BackboneSpec, data: ClassificationData, options: SupervisedOptions, context: Context) -> Result:
    """Train on the training split, score the validation split, and export."""
    learner, loader = prepare_training(spec, data, options, context)
    return METHOD.train_and_score(learner, loader, validate, data, options, context, classes=list(data.classes))


def prepare_training(
    spec: BackboneSpec, data: ClassificationData, options: SupervisedOptions, context: Context
) -> tuple[SupervisedLearner, RunLoader]:
    """Return the classifier that is trained, from the weights that `spec` names, and the loader of its batches."""
    images = context.micro_batch(options.batch_size, options.grad_accum_steps)
    parts = {"classes": len(data.classes), "drop_path": options.drop_path}
    backbone = initial_backbone(spec, options, context, images=images, **parts)
    split = data.needed("train", METHOD.method)
    counts = np.bincount(split.labels, minlength=len(data.classes))
    learner = SupervisedLearner(backbone, torch.from_numpy(counts / counts.sum()), options, context.seed)
    return learner, train_loader(split, backbone, options, context)


def untrained_learner(spec: BackboneSpec, options: SupervisedOptions) -> SupervisedLearner:
    """Return the backbone with a classifier of two classes."""
    backbone = create(spec, img_size=options.size, classes=2, weights="random", load="strict")
    return SupervisedLearner(backbone, torch.full((2,), 0.5), options, seed=0)


def train_loader(split: Split, backbone: Backbone, options: SupervisedOptions, context: Context) -> RunLoader:
    """Return the loader of augmented images with their labels, and label maps if there are any."""
    maps = None
    if options.token_labels is not None:
        maps = LabelMaps(options.token_labels, split, backbone.classes or 0)
    transform = _transform(backbone, options)
    images = SplitDataset(split, transform, seed=context.seed, extra=maps)
    draw = shuffled_batches if options.repeats == 1 else partial(repeated_batches, repeats=options.repeats)
    batches = partial(draw, len(split), options.batch_size, seed=context.seed)
    parts, repeats = options.grad_accum_steps, options.repeats
    return context.loader(images, batches, parts=parts, collate=collate_boxes, repeats=repeats)


def _transform(backbone: Backbone, options: SupervisedOptions) -> Any:
    mean, std = backbone.spec.mean or (), backbone.spec.std or ()  # which a built backbone knows
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
