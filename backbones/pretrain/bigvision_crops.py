"""big_vision's crops: the inception crop of training and the centre crops of its evaluations."""

import math
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

TRIES = 100


class InceptionCrop:
    """A random crop, resized to size x size bilinearly without antialias (GoogLeNet, arXiv 1409.4842, section 6).

    Drawn as TensorFlow's `sample_distorted_bounding_box` draws it: the width / height uniformly from `ratio`, then the
    height in whole pixels uniformly between those at which the crop covers `area` of the image and fits it (so neither
    the area nor the logarithm of the ratio is uniform, as in torchvision). After `TRIES` misses, the whole image.
    """

    def __init__(self, size: int, area: tuple[float, float], ratio: tuple[float, float]) -> None:
        self.size = size
        self.area = area
        self.ratio = ratio

    def __call__(self, image: Image.Image) -> Image.Image:
        left, top, w, h = self.draw(*image.size)
        crop = image.crop((left, top, left + w, top + h))
        # PIL's `resize` averages over what it skips; `transform` does not, and truncates to whole values as TensorFlow
        return crop.transform((self.size, self.size), Image.Transform.EXTENT, (0, 0, w, h), Image.Resampling.BILINEAR)

    def draw(self, W: int, H: int) -> tuple[int, int, int, int]:
        """Return a box (left, top, width, height) in an image of W x H pixels."""
        least, most = (share * W * H for share in self.area)
        for _ in range(TRIES):
            ratio = random.uniform(*self.ratio)
            low = round(math.sqrt(least / ratio))
            high = min(round(math.sqrt(most / ratio)), int((W + 0.499999) / ratio), H)
            h = random.randint(min(low, high), high)
            h += round(h * ratio) * h < least  # rounding may leave the range of areas by one row
            h -= round(h * ratio) * h > most
            w = round(h * ratio)
            if least <= w * h <= most and 0 < w <= W and 0 < h <= H:
                return random.randrange(max(W - w, 1)), random.randrange(max(H - h, 1)), w, h
        return 0, 0, W, H


class AreaCrop:
    """The size x size centre crop of an image whose shorter side is first resized to `resize` by area averages."""

    def __init__(self, size: int, resize: int) -> None:
        self.size = size
        self.resize = resize

    def __call__(self, image: Image.Image) -> Image.Image:
        factor = self.resize / min(image.size)
        rows, columns = (self._weights(length, round(length * factor)) for length in (image.height, image.width))
        pixels = np.einsum("hH,HW...->hW...", rows, np.asarray(image, np.float32), optimize=True)
        pixels = np.einsum("wW,hW...->hw...", columns, pixels, optimize=True)
        return Image.fromarray((pixels + 1e-3).astype(np.uint8))  # whole values stay whole when truncated

    def _weights(self, length: int, resized: int) -> NDArray[Any]:
        """Return [size, length]: the share of every input pixel in the output pixels that the centre crop keeps."""
        first = (resized - self.size) // 2
        edges = np.arange(first, first + self.size + 1)[:, None] * (length / resized)
        pixel = np.arange(length)
        overlap = np.minimum(edges[1:], pixel + 1) - np.maximum(edges[:-1], pixel)
        weights: NDArray[Any] = (np.clip(overlap, 0, None) * (resized / length)).astype(np.float32)
        return weights


class SquashCrop:
    """The size x size centre crop of an image resized to resize x resize, whatever its shape (big_vision's probes).

    `resize(256)|central_crop(224)` of big_vision's pp/ops_image.py: bilinear without antialias, truncated to whole
    values. Only the crop is computed.
    """

    def __init__(self, size: int, resize: int) -> None:
        self.size = size
        self.resize = resize

    def __call__(self, image: Image.Image) -> Image.Image:
        first = (self.resize - self.size) // 2
        across, down = (length / self.resize for length in image.size)
        last = first + self.size
        box = (first * across, first * down, last * across, last * down)
        return image.transform((self.size, self.size), Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)
