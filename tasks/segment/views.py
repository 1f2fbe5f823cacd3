"""Images with the labels of their pixels as tensors: random views for training, whole images for scoring.

The training views are those of mmsegmentation 0.27 in DINOv2's configurations: Resize, RandomCrop, RandomFlip,
PhotoMetricDistortion, Pad; it resizes without antialias, ours is with it, and colors are changed by torchvision's
operations, where its brightness is a sum and its contrast a product. Shapes: H x W pixels.
"""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import v2

from tasks.segment.task import SegmentOptions
from transfer.core.seeding import seeded
from transfer.data.formats.masks import IGNORED, MaskSplit
from transfer.data.loading.images import Key, to_pixels
from transfer.data.splits.dataset import SplitDataset

TRIES = 10
CHANGES = {"brightness": 32 / 255, "contrast": 0.5, "saturation": 0.5, "hue": 18 / 180}
"""Largest changes, of which each is made in half of the images."""
DISTORT = v2.Compose([v2.RandomApply([v2.ColorJitter(**{name: most})], 0.5) for name, most in CHANGES.items()])


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
    return _tensors(resized(pair[0], size), pair[1])


def random_view(pair: Sequence[Image.Image], options: SegmentOptions, fill: tuple[int, ...]) -> list[Tensor]:
    """Return a random crop of an image and its mask; what it has beyond them is of the color `fill`, and ignored."""
    size = options.size
    image = resized(pair[0], round(size * random.uniform(*options.scale)))
    mask = pair[1].resize(image.size, Image.Resampling.NEAREST)
    for _ in range(TRIES):
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


def resized(image: Image.Image, shorter: int) -> Image.Image:
    """Return an image with this shorter side, bilinear."""
    return ImageOps.cover(image, (shorter, shorter), Image.Resampling.BILINEAR)


def windows(height: int, width: int, size: int) -> list[tuple[int, int]]:
    """Return the upper left corners of windows of `size` pixels that cover an image, two thirds of a side apart."""
    starts = ([*range(0, side - size, size * 2 // 3), side - size] for side in (height, width))
    return list(product(*starts))
