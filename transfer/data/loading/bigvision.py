"""big_vision's crops and RandAugment: the inception crop of training, and the centre crops of its evaluations.

RandAugment is arXiv 1909.13719, section 3, in the form of `pp/archive/autoaugment.py`, on PIL images: sixteen
operations with TensorFlow AutoAugment's magnitudes: m = level / 10 scales every range, so levels above 10 exceed the
nominal largest. Not timm's RandAugment: other operations, no noise on the magnitude, and every layer applies one
operation. Three oddities of the reference are kept, as what was published was trained with them: Solarize's threshold
wraps around at 256, Posterize's shift is a byte, and Contrast takes the number of pixels for their mean (big_vision
issue 109). Values agree with the TensorFlow operations up to one level of the grey image in Color, and up to ties of
the nearest pixel in rotations.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

CROP_TRIES = 100


class InceptionCrop:
    """A random crop, resized to size x size bilinearly without antialias (GoogLeNet, arXiv 1409.4842, section 6).

    Drawn as TensorFlow's `sample_distorted_bounding_box` draws it: the width / height uniformly from `ratio`, then the
    height in whole pixels uniformly between those at which the crop covers `area` of the image and fits it (so neither
    the area nor the logarithm of the ratio is uniform, as in torchvision). After `CROP_TRIES` misses, the whole image.
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
        for _ in range(CROP_TRIES):
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


@dataclass
class CentreCrop:
    """The sides of a centre crop, and to what an image is resized before it, in pixels."""

    size: int
    resize: int


class AreaCrop(CentreCrop):
    """The size x size centre crop of an image whose shorter side is first resized to `resize` by area averages."""

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
        return (np.clip(overlap, 0, None) * (resized / length)).astype(np.float32)


class SquashCrop(CentreCrop):
    """The size x size centre crop of an image resized to resize x resize, whatever its shape (big_vision's probes).

    `resize(256)|central_crop(224)` of big_vision's pp/ops_image.py: bilinear without antialias, truncated to whole
    values. Only the crop is computed.
    """

    def __call__(self, image: Image.Image) -> Image.Image:
        first = (self.resize - self.size) // 2
        across, down = (length / self.resize for length in image.size)
        last = first + self.size
        box = (first * across, first * down, last * across, last * down)
        return image.transform((self.size, self.size), Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)


FILL = (128, 128, 128)
CUTOUT = 40  # half the side of the box, in pixels, at level 10
TRANSLATE = 100  # pixels at level 10
SMOOTH_FILTER = ImageFilter.Kernel((3, 3), (1, 1, 1, 1, 5, 1, 1, 1, 1), 13, offset=-0.499)  # truncates where PIL rounds
NUDGE = 1 / 256  # of a pixel: shears by tenths meet ties of the nearest pixel, which go up
Operation = Callable[[Image.Image, float], Image.Image]


class RandAugment:
    """Applies `layers` operations, each drawn uniformly from the sixteen, at magnitude `level` / 10.

    Draws from `random` alone. The constants in pixels are meant for images of 224 px.
    """

    def __init__(self, layers: int, level: int) -> None:
        self.layers = layers
        self.m = level / 10

    def __call__(self, image: Image.Image) -> Image.Image:
        for name in random.choices(list(OPERATIONS), k=self.layers):
            image = OPERATIONS[name](image, self.m)
        return image


def _rotate(image: Image.Image, m: float) -> Image.Image:
    """Rotate about the centre by 30 m degrees, in either direction."""
    angle = math.radians(30 * random_sign(m))
    cos, sin, x, y = math.cos(angle), math.sin(angle), (image.width - 1) / 2, (image.height - 1) / 2
    return _affine(image, cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def _solarize_add(image: Image.Image, m: float) -> Image.Image:
    """Add int(110 m) to values below 128."""
    add = int(110 * m)
    return image.point([min(value + add, 255) if value < 128 else value for value in range(256)] * 3)


def _contrast(image: Image.Image, m: float) -> Image.Image:
    """Extrapolate from the grey value H W / 256, at most 255 (196 at 224 px), by the factor 1.8 m + 0.1."""
    grey = min(image.width * image.height // 256, 255)
    return Image.blend(Image.new("RGB", image.size, (grey,) * 3), image, 1.8 * m + 0.1)


def _cutout(image: Image.Image, m: float) -> Image.Image:
    """Grey the box of int(40 m) pixels on each side of a pixel drawn uniformly (arXiv 1708.04552)."""
    half = int(CUTOUT * m)
    x, y = random.randrange(image.width), random.randrange(image.height)
    image = image.copy()
    image.paste(FILL, (max(x - half, 0), max(y - half, 0), min(x + half, image.width), min(y + half, image.height)))
    return image


def random_sign(m: float) -> float:
    """Return m or -m, each with probability 1/2."""
    return m if random.random() < 0.5 else -m


def _affine(image: Image.Image, a: float, b: float, c: float, d: float, e: float, f: float) -> Image.Image:
    """Return the image whose pixel (x, y) is the nearest of the given one's to (ax + by + c, dx + ey + f); grey
    outside.
    """
    # PIL's coordinates have pixel centres at halves, those of the formula at whole numbers
    matrix = (a, b, c + 0.5 - (a + b) / 2, d, e, f + 0.5 - (d + e) / 2)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=FILL)


OPERATIONS: dict[str, Operation] = {
    "AutoContrast": lambda image, m: ImageOps.autocontrast(image),
    "Equalize": lambda image, m: ImageOps.equalize(image),
    "Invert": lambda image, m: ImageOps.invert(image),
    "Rotate": _rotate,
    # clears the lowest 8 - int(4 m) bits; TensorFlow takes that as uint8 and clears 7 at most
    "Posterize": lambda image, m: ImageOps.posterize(image, 8 - min((8 - int(4 * m)) % 256, 7)),
    # all values at levels 0, 10 and 20
    "Solarize": lambda image, m: ImageOps.solarize(image, int(256 * m) % 256),
    # extrapolates from the image's grey version
    "Color": lambda image, m: ImageEnhance.Color(image).enhance(1.8 * m + 0.1),
    "Contrast": _contrast,
    "Brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(1.8 * m + 0.1),
    # extrapolates from the 3x3 mean with weight 5 of 13 in the centre; the border stays
    "Sharpness": lambda image, m: Image.blend(image.filter(SMOOTH_FILTER), image, 1.8 * m + 0.1),
    "ShearX": lambda image, m: _affine(image, 1, 0.3 * random_sign(m), NUDGE, 0, 1, 0),
    "ShearY": lambda image, m: _affine(image, 1, 0, 0, 0.3 * random_sign(m), 1, NUDGE),
    "TranslateX": lambda image, m: _affine(image, 1, 0, TRANSLATE * random_sign(m), 0, 1, 0),
    "TranslateY": lambda image, m: _affine(image, 1, 0, 0, 0, 1, TRANSLATE * random_sign(m)),
    "Cutout": _cutout,
    "SolarizeAdd": _solarize_add,
}
