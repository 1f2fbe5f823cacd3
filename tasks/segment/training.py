"""Segmentation by batch norm and a linear layer on frozen patch tokens, as DINOv2 evaluates backbones.

DINOv2 (arXiv 2304.07193, section 7.4, "Linear"); its BNHead is in facebookresearch/dinov2, dinov2/eval/segmentation/
models/decode_heads/linear_head.py. Values are in `configs/tasks/segment.yaml`.
Shapes: B images or windows, h x w token grid, H x W pixels, D channels of a block, F of all, C classes.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import image_outcomes
from backbones.spec import BackboneSpec
from backbones.trained_weights import check_head, export_frozen, read_frozen_head
from tasks.labelled_images import frozen_backbone
from tasks.segment.scoring import COUNTS, resampled, rescore
from tasks.segment.task import SegmentOptions
from tasks.segment.views import MaskedImages, random_view, whole_view, windows
from transfer.core.errors import UsageError
from transfer.data.classification import ClassificationData
from transfer.data.formats.masks import IGNORED
from transfer.data.loading.loader import shuffled_batches
from transfer.engine.context import Context
from transfer.engine.extract import compute_rows, raise_if_broken
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.loop import fit
from transfer.task import Result

__all__ = ["check", "rescore", "run", "untrained_learner"]


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

    def predict(self, image: Tensor, size: torch.Size, window: int, batch: int) -> Tensor:
        """Return the logits [C, H, W] of an image [1, 3, H', W'] enlarged to a size.

        Those of windows are averaged where they overlap, as in mmsegmentation's `slide_inference`.
        """
        height, width = image.shape[-2:]
        total, count = image.new_zeros(self.classes, height, width), image.new_zeros(height, width)
        corners = windows(height, width, window)
        places = [(..., slice(top, top + window), slice(left, left + window)) for top, left in corners]
        for start in range(0, len(places), batch):
            part = places[start : start + batch]
            logits = self.logits(self.encode(torch.cat([image[place] for place in part])))
            for place, enlarged in zip(part, interpolate(logits, (window, window), mode="bilinear")):
                total[place] += enlarged
                count[place] += 1
        return interpolate((total / count)[None], size, mode="bilinear")[0]

    def count(self, image: Tensor, labels: Tensor, window: int, batch: int) -> Tensor:
        """Return the rows of `COUNTS` for an image, int64 [1, 3, C]; -1 if a logit is not finite."""
        logits, labelled = self.predict(image, labels.shape[-2:], window, batch), labels[0] != IGNORED
        pairs = labels[0][labelled] * self.classes + logits.argmax(0)[labelled]
        confusion = torch.bincount(pairs, minlength=self.classes**2).view(self.classes, -1)
        right, true, found = confusion.diag(), confusion.sum(1), confusion.sum(0)
        return torch.where(logits.isfinite().all(), torch.stack([right, true + found - right, true]), -1)[None]


@torch.no_grad()
def make_encoder(backbone: Backbone, blocks: int, size: int) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return a function from images to patch tokens [B, F, h, w] of the last blocks after the final norm, and F.

    Of other models than plain vision transformers it is the map of the last stage, without a final norm.

    Raises:
        UserError: there are not so many blocks, or the model gives no maps.
    """
    plain = isinstance(backbone.model, VisionTransformer)
    most = backbone.depth if plain else 1
    if blocks > most:
        raise UsageError(f"--n-last-blocks {blocks}: backbone {backbone.spec.name} has {most}")

    def encode(images: Tensor) -> Tensor:
        if not plain:
            return backbone.maps(images, (-1,))[0]
        given = {"indices": blocks, "norm": True, "intermediates_only": True}
        return torch.cat(backbone.model.forward_intermediates(backbone.normalised(images), **given), 1)

    return encode, encode(backbone.mean.new_zeros(1, backbone.spec.in_chans, size, size)).shape[1]


def untrained_learner(spec: BackboneSpec, options: SegmentOptions) -> SegmentLearner:
    """Return the classifier alone: the backbone is frozen."""
    return SegmentLearner(torch.flatten, 1, 2)


def check(spec: BackboneSpec, dataset: ClassificationData, options: SegmentOptions, context: Context) -> None:
    """Check the backbone's tokens, the head where nothing is trained, and the batch for the ranks."""
    backbone = create(spec, img_size=options.size, weights="random", load="strict").eval()
    make_encoder(backbone, options.n_last_blocks, options.size)
    if not options.epochs:
        check_head(spec, "segment")
    context.micro_batch(options.batch_size, options.grad_accum_steps)


def run(spec: BackboneSpec, dataset: ClassificationData, options: SegmentOptions, context: Context) -> Result:
    """Train the classifier on the training split, and score the validation split."""
    val = dataset.validation
    backbone = frozen_backbone(spec, options, context)
    encode, dim = make_encoder(backbone, options.n_last_blocks, options.size)
    learner = SegmentLearner(encode, dim, len(dataset.classes))
    if options.epochs:
        view = partial(random_view, options=options, fill=tuple(round(255 * x) for x in backbone.spec.mean or ()))
        batches = partial(shuffled_batches, len(dataset.training), options.batch_size, seed=context.seed)
        images = MaskedImages(dataset.training, view, seed=context.seed)
        fit(learner, context.loader(images, batches, parts=options.grad_accum_steps), options, context)
        if context.outcome.training_failed:
            return {}, {}
    else:
        learner.load_state_dict(read_frozen_head(spec.weights, dataset.classes, learner.state_dict(), context))
        learner.to(context.device).eval()
    start, whole = time.monotonic(), MaskedImages(val, partial(whole_view, size=options.size))
    count = partial(learner.count, window=options.size, batch=options.eval_batch_size)
    counts = compute_rows(count, whole, context, batch_size=1, label="validation")
    raise_if_broken((counts < 0).any(2).any(1), val.names, "logits of the val split")
    outcomes = image_outcomes(val) | dict(zip(COUNTS, np.moveaxis(counts.numpy(), 1, 0)))
    outcomes |= resampled(outcomes)
    if lacking := [name for name, pixels in zip(dataset.classes, outcomes["labelled"].sum(0)) if not pixels]:
        context.note(f"mIoU is the mean over the other classes: no validation pixel is {', '.join(lacking)}")
    context.cost.eval_seconds += time.monotonic() - start
    if options.epochs:
        export_frozen(backbone, learner.state_dict(), context, classes=list(dataset.classes))
    return rescore(outcomes), outcomes
