"""Segmentation by batch norm and a linear layer on frozen patch tokens, as DINOv2 evaluates backbones.

DINOv2 (arXiv 2304.07193, section 7.4, "Linear"); its BNHead is in facebookresearch/dinov2, dinov2/eval/segmentation/
models/decode_heads/linear_head.py. Values are in `configs/tasks/segment.yaml`. Training views are those of
mmsegmentation 0.27 there: Resize, RandomCrop, RandomFlip, PhotoMetricDistortion, Pad; it resizes without antialias,
ours is with it, and colors are changed by torchvision's operations, where its brightness is a sum and its contrast a
product.
Shapes: B images or windows, h x w token grid, H x W pixels, D channels of a block, F of all, C classes.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torchvision.transforms import v2

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import image_outcomes
from backbones.spec import BackboneSpec
from backbones.trained_weights import check_head, export_frozen, read_frozen_head
from tasks.labelled_images import frozen_backbone
from tasks.segment.task import PIXEL_COUNTS, TASK, SegmentOptions, resampled
from transfer.core.errors import UsageError
from transfer.core.exports import weights_facts
from transfer.core.pictures import file_name
from transfer.core.seeding import seeded
from transfer.data.classification import ClassificationData
from transfer.data.formats.masks import IGNORED, MaskSplit
from transfer.data.loading.images import Key, to_floats, to_pixels
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.split import FileSplit
from transfer.engine.context import Context
from transfer.engine.extract import compute_rows, raise_if_broken
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.loop import fit
from transfer.task import Result

CROP_TRIES = 10
CHANGES = {"brightness": 32 / 255, "contrast": 0.5, "saturation": 0.5, "hue": 18 / 180}
"""Largest changes, of which each is made in half of the images."""
LABEL_PALETTE = np.random.default_rng(0).integers(256, size=768).tolist()
"""Palette of label images."""
DISTORT = v2.Compose([v2.RandomApply([v2.ColorJitter(**{name: most})], 0.5) for name, most in CHANGES.items()])


class SegmentLearner(Learner):
    """A batch norm and a linear classifier of patch tokens; the backbone behind `encode` is not a part in training."""

    backbone: Backbone

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
        return interpolate((total / count)[None], list(size), mode="bilinear")[0]

    def count(self, image: Tensor, labels: Tensor, window: int, batch: int) -> Tensor:
        """Return the rows of `PIXEL_COUNTS` for an image, int64 [1, 3, C]; -1 if a logit is not finite."""
        logits, labelled = self.predict(image, labels.shape[-2:], window, batch), labels[0] != IGNORED
        pairs = labels[0][labelled] * self.classes + logits.argmax(0)[labelled]
        confusion = torch.bincount(pairs, minlength=self.classes**2).view(self.classes, -1)
        right, true, predicted = confusion.diag(), confusion.sum(1), confusion.sum(0)
        return torch.where(logits.isfinite().all(), torch.stack([right, true + predicted - right, true]), -1)[None]


class MaskedImages(SplitDataset):
    """Images uint8 [channels, H, W] and labels int64 [H, W], which the transform makes of an image and its mask."""

    split: MaskSplit

    def __getitem__(self, key: Key) -> tuple[Tensor, ...]:
        index = key[1] if isinstance(key, tuple) else key
        pair = self.split.read(index), self.split.mask(index)
        with seeded(self.seed, *key) if isinstance(key, tuple) else nullcontext():
            return tuple(self.transform(pair))


def whole_view(pair: Sequence[Image.Image], size: int) -> list[Tensor]:
    """Return an image with this shorter side, and the labels of its mask, in full size."""
    return _tensors(_resized(pair[0], size), pair[1])


def random_view(pair: Sequence[Image.Image], options: SegmentOptions, fill: tuple[int, ...]) -> list[Tensor]:
    """Return a random crop of an image and its mask; what it has beyond them is of the color `fill`, and ignored."""
    size = options.size
    image = _resized(pair[0], round(size * random.uniform(*options.scale)))
    mask = pair[1].resize(image.size, Image.Resampling.NEAREST)
    for _ in range(CROP_TRIES):
        left, top = (random.randint(0, max(side - size, 0)) for side in image.size)
        box = (left, top, min(left + size, image.width), min(top + size, image.height))
        counts = np.array(mask.crop(box).histogram()[:IGNORED])
        if np.count_nonzero(counts) > 1 and counts.max() < options.most_of_class * counts.sum():
            break
    views = [image.crop(box), mask.crop(box)]
    if random.random() < options.flip:
        views = [ImageOps.mirror(view) for view in views]
    if options.distort:
        views[0] = DISTORT(views[0])
    beyond = [0, 0, *(size - side for side in views[0].size)]
    return _tensors(*(v2.functional.pad(view, beyond, color) for view, color in zip(views, (fill, IGNORED))))


def _tensors(image: Image.Image, mask: Image.Image) -> list[Tensor]:
    return [to_pixels(image), torch.from_numpy(np.array(mask, np.int64))]


def _resized(image: Image.Image, shorter: int) -> Image.Image:
    """Return an image with this shorter side, bilinear."""
    return ImageOps.cover(image, (shorter, shorter), Image.Resampling.BILINEAR)


def windows(height: int, width: int, size: int) -> list[tuple[int, int]]:
    """Return the upper left corners of windows of `size` pixels that cover an image, two thirds of a side apart."""
    starts = ([*range(0, side - size, size * 2 // 3), side - size] for side in (height, width))
    return list(product(*starts))


@torch.no_grad()
def make_map_encoder(backbone: Backbone, blocks: int, size: int) -> tuple[Callable[[Tensor], Tensor], int]:
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
        request = {"indices": blocks, "norm": True, "intermediates_only": True}
        return torch.cat(backbone.model.forward_intermediates(backbone.normalised(images), **request), 1)

    return encode, encode(backbone.mean.new_zeros(1, backbone.spec.in_chans, size, size)).shape[1]


def untrained_learner(spec: BackboneSpec, options: SegmentOptions) -> SegmentLearner:
    """Return the classifier alone: the backbone is frozen."""
    return SegmentLearner(torch.flatten, 1, 2)


def check(spec: BackboneSpec, dataset: ClassificationData, options: SegmentOptions, context: Context) -> None:
    """Check the backbone's tokens, the head where nothing is trained, and the batch for the ranks."""
    backbone = create(spec, img_size=options.size, weights="random", load="strict").eval()
    make_map_encoder(backbone, options.n_last_blocks, options.size)
    if not options.epochs:
        check_head(spec, "segment")
    context.micro_batch(options.batch_size, options.grad_accum_steps)


def run(spec: BackboneSpec, dataset: ClassificationData, options: SegmentOptions, context: Context) -> Result:
    """Train the classifier on the training split, and score the validation split."""
    val = dataset.validation
    backbone = frozen_backbone(spec, options, context)
    encode, dim = make_map_encoder(backbone, options.n_last_blocks, options.size)
    learner = SegmentLearner(encode, dim, len(dataset.classes))
    context.details["classes"] = {str(label): name for label, name in enumerate(dataset.classes)}
    if options.epochs:
        view = partial(random_view, options=options, fill=tuple(round(255 * x) for x in backbone.spec.mean or ()))
        images = MaskedImages(dataset.training, view, seed=context.seed)
        fit(learner, context.shuffled(images, options), options, context)
        if context.outcome.nonfinite:
            return {}, {}
    else:
        learner.load_state_dict(read_frozen_head(spec.weights, dataset.classes, learner.state_dict(), context))
        learner.to(context.device).eval()
    start, whole = time.monotonic(), MaskedImages(val, partial(whole_view, size=options.size))
    count = partial(learner.count, window=options.size, batch=options.eval_batch_size)
    counts = compute_rows(count, whole, context, batch_size=1, label="validation")
    raise_if_broken((counts < 0).any(2).any(1), val.names, "logits of the val split")
    outcomes = image_outcomes(val) | dict(zip(PIXEL_COUNTS, np.moveaxis(counts.numpy(), 1, 0)))
    outcomes |= resampled(outcomes)
    context.cost.eval_seconds += time.monotonic() - start
    if options.epochs:
        export_frozen(backbone, learner.state_dict(), context, classes=list(dataset.classes), upright=val.upright)
    return TASK.rescore(outcomes), outcomes


def restore(spec: BackboneSpec, options: SegmentOptions, context: Context) -> SegmentLearner:
    """Return the classifier with the backbone that it was trained on."""
    backbone, classes = create(spec, img_size=options.size).eval(), weights_facts(spec.weights).get("classes", [])
    learner = SegmentLearner(*make_map_encoder(backbone, options.n_last_blocks, options.size), len(classes))
    learner.load_state_dict(read_frozen_head(spec.weights, classes, learner.state_dict(), context))
    learner.backbone = backbone
    return learner


@torch.inference_mode()
def predict(learner: SegmentLearner, images: FileSplit, options: SegmentOptions, context: Context) -> dict[str, Any]:
    """Return `labels`, the class of each pixel of every image, uint8 [H, W]; `classes` and as `scores` their shares of
    the pixels.
    """
    labels = []
    for index in context.bar(range(len(images)), "segmentation"):
        image = images.read(index)
        pixels = to_floats(to_pixels(_resized(image, options.size))[None].to(context.device))
        with context.scoring():
            logits = learner.predict(pixels, image.size[::-1], options.size, options.eval_batch_size)
        labels.append(logits.argmax(0).byte().cpu().numpy())
    shares = [np.bincount(places.ravel(), minlength=learner.classes) / places.size for places in labels]
    classes = np.array(weights_facts(learner.backbone.spec.weights)["classes"])
    return {"labels": labels, "scores": np.stack(shares), "classes": classes}


def draw(images: FileSplit, prediction: dict[str, Any], folder: Path) -> None:
    """Save the labels of every image as `folder`/NAME.png (see `file_name`) with a palette."""
    for name, labels in zip(images.names, prediction["labels"]):
        picture = Image.fromarray(labels)
        picture.putpalette(LABEL_PALETTE)
        picture.save(folder / f"{file_name(name)}.png")
