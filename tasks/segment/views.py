"""Images with the labels of their pixels as tensors: random views for training, whole images for scoring.

The training views are those of mmsegmentation 0.27 in DINOv2's configurations: Resize, RandomCrop, RandomFlip,
PhotoMetricDistortion, Pad; it resizes without antialias, ours is with it, and colors are changed by torchvision's
operations, where its brightness is a sum and its contrast a product. Shapes: H x W pixels.
"""

import random
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import ColorJitter, Compose, RandomApply

from tasks.segment.task import SegmentOptions
from transfer.core.seeding import seeded
from transfer.data.formats.masks import IGNORED, MaskSplit
from transfer.data.loading.images import Key, to_pixels
from transfer.data.splits.split import LIMIT

TRIES = 10
DISTORTION = {"brightness": 32 / 255, "contrast": 0.5, "saturation": 0.5, "hue": 18 / 180}
"""Largest changes, of which each is made in half of the images."""


class MaskedImages(Dataset[tuple[Tensor, Tensor]]):
    """Images uint8 [channels, H, W] and labels int64 [H, W] of a split.

    A key is an index, for whole images and their masks in full size, or (epoch, index, repeat), for random views of
    both.

    Args:
        mean: of the backbone's normalisation: the color of what a crop has beyond the image.
    """

    def __init__(self, split: MaskSplit, options: SegmentOptions, mean: Sequence[float] = (), seed: int = 0) -> None:
        self.split, self.options, self.seed = split, options, seed
        self.fill = tuple(round(255 * value) for value in mean)
        changes = [ColorJitter(**{name: most}) for name, most in DISTORTION.items()]
        self.distort = Compose([RandomApply([change], 0.5) for change in changes])
        split.preload(LIMIT)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        index = key[1] if isinstance(key, tuple) else key
        image, mask = self.split.read(index), self.split.mask(index)
        if isinstance(key, tuple):
            with seeded(self.seed, *key):
                image, mask = self._view(image, mask)
        else:
            image = resized(image, self.options.size)
        return to_pixels(image), torch.from_numpy(np.asarray(mask).astype(np.int64))

    def _view(self, image: Image.Image, mask: Image.Image) -> tuple[Image.Image, Image.Image]:
        size, options = self.options.size, self.options
        image = resized(image, round(size * random.uniform(*options.scale)))
        mask = mask.resize(image.size, Image.Resampling.NEAREST)
        for _ in range(TRIES):
            left, top = (random.randint(0, max(side - size, 0)) for side in image.size)
            box = (left, top, min(left + size, image.width), min(top + size, image.height))
            counts = np.array(mask.crop(box).histogram()[:IGNORED])
            if np.count_nonzero(counts) > 1 and counts.max() < options.most_of_class * counts.sum():
                break
        image, mask = image.crop(box), mask.crop(box)
        if random.random() < options.flip:
            image, mask = (part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for part in (image, mask))
        image = self.distort(image) if options.distort else image
        whole, labels = Image.new(image.mode, (size, size), self.fill), Image.new("L", (size, size), IGNORED)
        whole.paste(image)
        labels.paste(mask)
        return whole, labels


def resized(image: Image.Image, shorter: int) -> Image.Image:
    """Return an image with this shorter side, bilinear."""
    factor = shorter / min(image.size)
    width, height = (max(round(side * factor), shorter) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def windows(height: int, width: int, size: int) -> list[tuple[int, int]]:
    """Return the upper left corners of windows of `size` pixels that cover an image, two thirds of a side apart."""
    step = size * 2 // 3

    def starts(side: int) -> list[int]:
        return [min(step * number, side - size) for number in range(max(side - size + step - 1, 0) // step + 1)]

    return [(top, left) for top in starts(height) for left in starts(width)]
