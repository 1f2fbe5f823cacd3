"""Linear classification on frozen features, as DINO evaluates backbones (arXiv 2104.14294, section 4.1).

Its values are in `configs/tasks/linear.yaml`. Shapes: B images, N validation images, T tokens, D channels,
F channels of the features, C classes.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import image_outcomes, named_scores
from backbones.spec import BackboneSpec
from backbones.trained_weights import check_head, export_frozen, read_frozen_head, read_head
from tasks.labelled_images import check_classes, frozen_backbone
from tasks.linear.learner import ROWS, LinearLearner, RateGrid, held_out, rescore
from tasks.linear.task import LinearOptions
from transfer.core.errors import UsageError, UserError
from transfer.data.classification import ClassificationData, Split
from transfer.data.loading.augment import train_transform, view_of
from transfer.data.loading.loader import RunLoader
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.engine.extract import check_finite, check_varied, extract, raise_if_broken
from transfer.engine.loop import fit
from transfer.engine.optim import freeze_others
from transfer.task import Outcomes, Result, Scores


def make_encoder(
    backbone: Backbone, blocks: int, avgpool: bool, context: Context
) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return a function from images [B, 3, H, W] to features [B, F], and F = D (blocks + avgpool).

    Tokens of each of the last blocks are pooled as at the end of the model: the class token after the final norm, or
    the mean over the tokens if the model pools by the mean. Other models than plain vision transformers give their
    pooled features only, as in DINO's own evaluation; the record notes it.
    """
    if not isinstance(backbone.model, VisionTransformer):
        context.note(f"{backbone.spec.arch} is not a plain ViT: linear uses its pooled features only")
        return backbone.pooled, backbone.dim
    if backbone.spec.pool not in (None, "cls") or backbone.model.global_pool != "token":
        context.note(f"{backbone.spec.name} pools by the mean: so do the features of each block")

    def encode(images: Tensor) -> Tensor:
        entries = backbone.tokens(images, norm=True)[-blocks:]
        features = [backbone.model.forward_head(entry, pre_logits=True) for entry in entries]
        if avgpool:
            features.append(entries[-1][:, backbone.model.num_prefix_tokens :].mean(1))
        return torch.cat(features, dim=1)

    return encode, backbone.dim * blocks + backbone.model.embed_dim * avgpool


def hold_out(data: ClassificationData, options: LinearOptions, seed: int) -> tuple[ClassificationData, Split | None]:
    """Return the data without the training images that choose among `--lrs`, and these; without `--lrs` all data."""
    if not (options.lrs and options.epochs):
        return data, None
    held = held_out(data.training.labels, options.selection_share, seed)
    rest = np.setdiff1d(np.arange(len(data.training)), held)
    return replace(data, train=data.training.select(rest)), data.training.select(held)


def untrained_learner(spec: BackboneSpec, options: LinearOptions) -> LinearLearner | RateGrid:
    """Return the classifier, or those of several rates, alone: the backbone is frozen."""
    return _for_rates(LinearLearner(nn.Identity(), 1, np.arange(2), 2), options)


def _for_rates(learner: LinearLearner, options: LinearOptions) -> LinearLearner | RateGrid:
    return RateGrid(learner, options.lrs) if options.lrs and options.epochs else learner


def check(spec: BackboneSpec, dataset: ClassificationData, options: LinearOptions, context: Context) -> None:
    """Check classes, the backbone's features, the number of images in a batch for the ranks, and the learner."""
    check_classes(dataset)
    backbone = create(spec, img_size=options.size, weights="random", load="strict")
    if isinstance(backbone.model, VisionTransformer) and options.n_last_blocks > backbone.depth:
        raise UsageError(f"--n-last-blocks {options.n_last_blocks}: backbone {spec.name} has {backbone.depth}")
    if options.avgpool and not isinstance(backbone.model, VisionTransformer):
        raise UsageError(f"--avgpool: backbone {spec.name} ({spec.arch}) is not a plain ViT; use --no-avgpool")
    dataset, _ = hold_out(dataset, options, context.seed)
    if not options.epochs:
        check_head(spec, "linear")
    elif len(dataset.training) < options.batch_size:
        raise UserError(
            f"{dataset.name}: {len(dataset.training)} training images, a step takes --batch-size {options.batch_size}"
        )
    context.micro_batch(options.batch_size, options.grad_accum_steps)
    freeze_others(untrained_learner(spec, options), options.trainable)


def run(spec: BackboneSpec, dataset: ClassificationData, options: LinearOptions, context: Context) -> Result:
    """Train the classifier on the training split; validate on features that are extracted once."""
    backbone = frozen_backbone(spec, options, context)
    encode, dim = make_encoder(backbone, options.n_last_blocks, options.avgpool, context)
    dataset, held = hold_out(dataset, options, context.seed)
    balanced = options.class_weights == "balanced"
    first = LinearLearner(encode, dim, dataset.training.labels, len(dataset.classes), balanced)
    learner = _for_rates(first, options)
    start = time.monotonic()
    val_features = features(learner, dataset.validation, options, context)
    check_finite(val_features, dataset.validation.names, "features of the val split")
    check_varied(val_features, context.eval_precision, "validation")
    seconds, labels = time.monotonic() - start, torch.from_numpy(dataset.validation.labels)

    def validate(epoch: int) -> Scores:
        if (epoch + 1) % options.validate_every and epoch + 1 < options.last_epoch:
            return {}
        return learner.validate(val_features, labels, context.device)

    if options.epochs:
        loader = train_loader(dataset, backbone, options, context)
        fit(learner, loader, replace(options, lr=max(options.lrs, default=options.lr)), context, validate)
    else:
        _classify_by_trained_heads(first, spec.weights, dataset, val_features, context)
    context.cost.eval_seconds += seconds
    if context.outcome.nonfinite:
        return {}, {}
    if context.outcome.training_failed:  # it may have ended before a validation
        learner.validate(val_features, labels, context.device)
    if isinstance(learner, RateGrid):
        assert held is not None
        start = time.monotonic()
        learner = learner.choose(features(learner, held, options, context), torch.from_numpy(held.labels), context)
        context.cost.eval_seconds += time.monotonic() - start
    raise_if_broken(learner.last[:, 0] < 0, dataset.validation.names, "logits of the val split")
    if options.epochs:
        export_frozen(backbone, learner.heads(), context, classes=list(dataset.classes))
    outcomes = image_outcomes(dataset.validation) | learner.outcomes()
    return rescore(outcomes), outcomes


def restore(spec: BackboneSpec, options: LinearOptions, context: Context) -> LinearLearner:
    """Return the classifier of the last epoch with the backbone that it was trained on."""
    head, backbone = read_head(spec.weights, context.head_digest), create(spec, img_size=options.size)
    encode, dim = make_encoder(backbone, options.n_last_blocks, options.avgpool, context)
    classes = len(head["head.weight"])
    learner = LinearLearner(encode, dim, np.arange(classes), classes)
    learner.head.load_state_dict({key: head[f"head.{key}"] for key in ("weight", "bias")})
    learner.backbone = backbone
    return learner


def features(model: LinearLearner | RateGrid, images: Split, options: LinearOptions, context: Context) -> Tensor:
    """Return the features [M, F] that are classified."""
    view = SplitDataset(images, view_of(options))
    return extract(model.encode, view, context, batch_size=options.eval_batch_size, label=f"{images.name} features")


@torch.no_grad()
def predict(model: LinearLearner, images: Split, options: LinearOptions, context: Context) -> Outcomes:
    """Classify images as the last validation does."""
    rows = features(model, images, options, context).split(ROWS)
    logits = torch.cat([model.head(x.to(context.device)).cpu() for x in rows])
    return named_scores(logits, model.backbone)


def _classify_by_trained_heads(
    learner: LinearLearner, weights: str, data: ClassificationData, features: Tensor, context: Context
) -> None:
    """Validate the heads that a run left, for scores without training. Raises UserError when they do not fit."""
    head = read_frozen_head(weights, data.classes, {"head.weight": learner.head.weight}, context)
    labels = torch.from_numpy(data.validation.labels)
    for name in ("best", "head"):  # the last validation is that of the head at the end
        learner.head.load_state_dict({key: head[f"{name}.{key}"] for key in ("weight", "bias")})
        learner.to(context.device).eval()
        learner.validate(features, labels, context.device)


def train_loader(
    dataset: ClassificationData, backbone: Backbone, options: LinearOptions, context: Context
) -> RunLoader:
    """Return a loader of shuffled batches of randomly cropped and flipped images, without an incomplete last batch."""
    train = dataset.training
    mean, std = backbone.spec.mean, backbone.spec.std
    assert mean, "a built backbone knows its pixel statistics"
    assert std
    augmentation = options.augmentation(crop_area=options.crop_area, flip=options.flip)
    images = SplitDataset(train, train_transform(options.size, augmentation, mean, std), seed=context.seed)
    return context.shuffled(images, options)
