"""Segmentation by batch norm and a linear layer on frozen patch tokens, as DINOv2 evaluates backbones.

DINOv2 (arXiv 2304.07193, section 7.4, "Linear"); its BNHead is in facebookresearch/dinov2, dinov2/eval/segmentation/
models/decode_heads/linear_head.py. Values are in `configs/tasks/segment.yaml`.
Shapes: B images or windows, h x w token grid, H x W pixels, D channels of a block, F of all, C classes.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import image_outcomes
from backbones.spec import BackboneSpec
from backbones.trained_weights import check_head, export_frozen, read_head
from tasks.labelled_images import check_classes, frozen_backbone
from tasks.segment.scoring import COUNTS, resampled, rescore
from tasks.segment.task import SegmentOptions
from tasks.segment.views import MaskedImages, windows
from transfer.core.errors import UsageError, UserError
from transfer.core.exports import export_folder, pretraining_facts
from transfer.data.classification import ClassificationData
from transfer.data.formats.masks import IGNORED, MaskSplit
from transfer.data.loading.loader import shuffled_batches
from transfer.engine.context import Context
from transfer.engine.extract import compute_rows, raise_if_broken
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.loop import fit
from transfer.engine.optim import freeze_others
from transfer.task import Result

__all__ = ["check", "rescore", "run", "untrained_learner"]
CLASSES = 16  # whose logits are enlarged to full size at a time


class SegmentLearner(Learner):
    """A batch norm and a linear classifier of patch tokens; the backbone behind `encode` is not a part of it."""

    def __init__(self, encode: Callable[[Tensor], Tensor], dim: int, classes: int) -> None:
        super().__init__()
        self.encode, self.classes = encode, classes
        self.norm, self.head = nn.BatchNorm2d(dim), nn.Conv2d(dim, classes, 1)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits [B, C, h, w] of features [B, F, h, w]."""
        with torch.autocast(features.device.type, enabled=False):
            return self.head(self.norm(features.float()))

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the cross-entropy of this rank's batch (images [B, 3, H, W], labels [B, H, W]).

        Ignored pixels count as 0 in the mean over all pixels, as in DINOv2's evaluation (`avg_non_ignore=False` of
        mmsegmentation), so that a batch is the mean of its parts.
        """
        images, labels = batch
        with torch.no_grad():
            features = self.encode(images)
        logits = interpolate(self.logits(features), labels.shape[-2:], mode="bilinear")
        loss = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / labels.numel()
        return {"loss": loss, "spread": feature_spread(features.movedim(1, -1).flatten(0, -2))}

    def predict(self, image: Tensor, size: Sequence[int], window: int, batch: int) -> Tensor:
        """Return the classes [H, W] of an image [1, 3, H', W'], and -1 if a logit is not finite.

        Logits of windows are averaged where they overlap, as in mmsegmentation's `slide_inference`.
        """
        height, width = image.shape[-2:]
        places = [
            (..., slice(top, top + window), slice(left, left + window)) for top, left in windows(height, width, window)
        ]
        parts = (places[start : start + batch] for start in range(0, len(places), batch))
        logits = torch.cat([self.logits(self.encode(torch.cat([image[place] for place in part]))) for part in parts])
        best, found = image.new_full(tuple(size), -torch.inf), torch.full(tuple(size), -1, device=image.device)
        if not logits.isfinite().all():
            return found
        count = image.new_zeros(height, width)
        for place in places:
            count[place] += 1
        for start, some in zip(range(0, self.classes, CLASSES), logits.split(CLASSES, 1)):
            total = image.new_zeros(1, some.shape[1], height, width)
            for place, one in zip(places, interpolate(some, (window, window), mode="bilinear")):
                total[place] += one
            value, index = interpolate(total / count, tuple(size), mode="bilinear")[0].max(0)
            found = torch.where(value > best, start + index, found)
            best = torch.maximum(value, best)
        return found

    def count(self, image: Tensor, labels: Tensor, window: int, batch: int) -> Tensor:
        """Return the rows of `COUNTS` for an image, int64 [1, 3, C]; -1 if a logit is not finite."""
        found = self.predict(image, labels.shape[-2:], window, batch)[labels[0] != IGNORED]
        true = labels[labels != IGNORED]
        if (found < 0).any():
            return torch.full((1, len(COUNTS), self.classes), -1)
        count = partial(torch.bincount, minlength=self.classes)
        right, labelled = count(true[true == found]), count(true)
        return torch.stack([right, labelled + count(found) - right, labelled])[None]


def make_encoder(backbone: Backbone, blocks: int) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return a function from images to patch tokens [B, F, h, w] of the last blocks behind the final norm, and F.

    Of other models than plain vision transformers it is the map of the last stage, without a final norm.
    """
    if not isinstance(backbone.model, VisionTransformer):
        return lambda images: backbone.maps(images, (-1,))[0], backbone.model.feature_info[-1]["num_chs"]
    embed, prefix = backbone.model.patch_embed, backbone.model.num_prefix_tokens

    def encode(images: Tensor) -> Tensor:
        tokens = torch.cat(backbone.tokens(images, norm=True)[-blocks:], dim=2)[:, prefix:]
        return tokens.transpose(1, 2).unflatten(2, embed.dynamic_feat_size(images.shape[-2:]))

    return encode, backbone.model.embed_dim * blocks


def untrained_learner(spec: BackboneSpec, options: SegmentOptions) -> SegmentLearner:
    """Return the classifier alone: the backbone is frozen."""
    return SegmentLearner(torch.flatten, 1, 2)


def check(spec: BackboneSpec, dataset: ClassificationData, options: SegmentOptions, context: Context) -> None:
    """Check classes, the backbone's tokens, the number of images in a batch for the ranks, and the learner."""
    check_classes(dataset)
    if not isinstance(dataset.val, MaskSplit):
        raise UsageError(f"{dataset.name}: images without masks; segment reads `format: masks`")
    backbone = create(spec, img_size=options.size, weights="random", load="strict").eval()
    blocks = backbone.depth if isinstance(backbone.model, VisionTransformer) else 1
    if options.n_last_blocks > blocks:
        raise UsageError(f"--n-last-blocks {options.n_last_blocks}: at most {blocks} of backbone {spec.name}")
    with torch.inference_mode():
        make_encoder(backbone, options.n_last_blocks)[0](torch.zeros(1, spec.in_chans, options.size, options.size))
    if not options.epochs:
        check_head(spec, "segment")
    elif len(dataset.training) < options.batch_size:
        images = f"{len(dataset.training)} training images"
        raise UserError(f"{dataset.name}: {images}, a step takes --batch-size {options.batch_size}")
    context.micro_batch(options.batch_size, options.grad_accum_steps)
    freeze_others(untrained_learner(spec, options), options.trainable)


def run(spec: BackboneSpec, dataset: ClassificationData, options: SegmentOptions, context: Context) -> Result:
    """Train the classifier on the training split, and score the validation split."""
    train, val = dataset.train, dataset.validation
    assert isinstance(val, MaskSplit)
    backbone = frozen_backbone(spec, options, context)
    encode, dim = make_encoder(backbone, options.n_last_blocks)
    learner = SegmentLearner(encode, dim, len(dataset.classes))
    lacking = [name for label, name in enumerate(dataset.classes) if label not in val.present()]
    if lacking:
        context.note(f"mIoU is the mean over the other classes: no validation pixel is {', '.join(lacking)}")
    if options.epochs:
        assert isinstance(train, MaskSplit)
        images = MaskedImages(train, options, backbone.spec.mean or (), context.seed)
        batches = partial(shuffled_batches, len(train), options.batch_size, seed=context.seed)
        fit(learner, context.loader(images, batches, parts=options.grad_accum_steps), options, context)
        if context.outcome.training_failed:
            return {}, {}
    else:
        _load_head(learner, spec.weights, dataset, context)
    start = time.monotonic()
    count = partial(learner.count, window=options.size, batch=options.eval_batch_size)
    counts = compute_rows(count, MaskedImages(val, options), context, batch_size=1, label="validation")
    raise_if_broken((counts < 0).any(2).any(1), val.names, "logits of the val split")
    outcomes = image_outcomes(val) | dict(zip(COUNTS, np.moveaxis(counts.numpy(), 1, 0)))
    outcomes |= resampled(outcomes)
    context.cost.eval_seconds += time.monotonic() - start
    if options.epochs:
        export_frozen(backbone, learner.state_dict(), context, classes=list(dataset.classes))
    return rescore(outcomes), outcomes


def _load_head(learner: SegmentLearner, weights: str, data: ClassificationData, context: Context) -> None:
    """Load what a run left beside the weights. Raises UserError when it does not fit."""
    trained = pretraining_facts(export_folder(weights) or Path(weights)).get("classes")
    head = read_head(weights, context.head_digest)
    shapes, wanted = ({name: x.shape for name, x in state.items()} for state in (head, learner.state_dict()))
    if trained != list(data.classes) or shapes != wanted:
        raise UserError(f"{weights}: the head was trained for other classes than those of {data.name}, or other blocks")
    learner.load_state_dict(head)
    learner.to(context.device).eval()
