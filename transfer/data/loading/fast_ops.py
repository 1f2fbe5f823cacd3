"""Operations on images by OpenCV, for `--image-ops fast`: uint8 arrays [H, W, 3] to the same.

Each does what Pillow's, torchvision's or timm's operation of the name does, with nearly the same pixels. Those that map
every value by a table, and so do not look at neighbours, are equal to Pillow's.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL.Image import Resampling
from torchvision.transforms import ColorJitter

Pixels = NDArray[np.uint8]

# A loader has processes for the cores; OpenCV's own threads would only wait for each other, and do not survive a fork.
cv2.setNumThreads(1)

VALUES = np.arange(256)
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], dtype=np.float32) / 13  # Pillow's ImageFilter.SMOOTH
DOWNWARDS = -0.4999  # added before rounding to the nearest value, it cuts fractions off, as Pillow does when blending
INTERPOLATION = {Resampling.BILINEAR: cv2.INTER_LINEAR, Resampling.BICUBIC: cv2.INTER_CUBIC}


def flip(image: Pixels) -> Pixels:
    """Mirror left and right."""
    return cv2.flip(image, 1)  # type: ignore[return-value]


def by_table(image: Pixels, table: NDArray[Any]) -> Pixels:
    """Replace every value by that of a table [256], or [256, 3] with a column for each channel."""
    table = np.clip(table, 0, 255).astype(np.uint8)
    return cv2.LUT(image, table[None] if table.ndim == 2 else table)  # type: ignore[return-value]


def grey(image: Pixels) -> Pixels:
    """Return the luminance in all three channels."""
    return cv2.merge([_luminance(image)] * 3)  # type: ignore[return-value]


def brightness(image: Pixels, factor: float, **_: Any) -> Pixels:
    """Blend with black; factor 1 changes nothing."""
    return by_table(image, _blended(0, factor))


def _contrast(image: Pixels, factor: float, **_: Any) -> Pixels:
    """Blend with the mean luminance."""
    return by_table(image, _blended(int(float(_luminance(image).mean()) + 0.5), factor))


def color(image: Pixels, factor: float, **_: Any) -> Pixels:
    """Blend with the grey image."""
    return cv2.addWeighted(image, factor, grey(image), 1 - factor, DOWNWARDS)  # type: ignore[return-value]


def hue(image: Pixels, shift: float) -> Pixels:
    """Turn the hue by a share of the color circle, in (-1, 1)."""
    turned: Any = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    turned[..., 0] += np.int32(shift * 255).astype(np.uint8)
    return cv2.cvtColor(turned, cv2.COLOR_HSV2RGB_FULL)


def sharpness(image: Pixels, factor: float, **_: Any) -> Pixels:
    """Blend with the smoothed image, whose outermost pixels are the image's own."""
    smooth = cv2.filter2D(image, -1, SMOOTH)
    smooth[[0, -1]], smooth[:, [0, -1]] = image[[0, -1]], image[:, [0, -1]]
    return cv2.addWeighted(image, factor, smooth, 1 - factor, DOWNWARDS)  # type: ignore[return-value]


def gaussian_blur(image: Pixels, radius: float, **_: Any) -> Pixels:
    """Blur as Pillow does, by three boxes whose variances add up to that of a Gaussian with this standard deviation."""
    kernel = _three_boxes(radius)
    return cv2.sepFilter2D(image, -1, kernel, kernel, borderType=cv2.BORDER_REPLICATE)  # type: ignore[return-value]


def _three_boxes(deviation: float) -> NDArray[Any]:
    """Return the kernel of three equal boxes of whole pixels with a share of one more at either end."""
    variance = deviation**2 / 3
    whole = math.floor((math.sqrt(12 * variance + 1) - 1) / 2)
    share = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    box = np.array([share, *[1.0] * (2 * whole + 1), share]) / (2 * (whole + share) + 1)
    return np.convolve(np.convolve(box, box), box).astype(np.float32)


def solarize(image: Pixels, threshold: int, **_: Any) -> Pixels:
    """Invert the values from a threshold on."""
    return by_table(image, np.where(threshold > VALUES, VALUES, 255 - VALUES))


def auto_contrast(image: Pixels, **_: Any) -> Pixels:
    """Stretch the values of each channel to 0..255."""
    low, high = np.array([cv2.minMaxLoc(channel)[:2] for channel in cv2.split(image)]).T
    scale = np.where(high > low, 255 / np.maximum(high - low, 1), 1.0)
    offset = np.where(high > low, -low * scale, 0.0)
    return by_table(image, (VALUES[:, None] * scale + offset).astype(int))


def equalize(image: Pixels, **_: Any) -> Pixels:
    """Spread the values of each channel so that they are equally frequent."""
    table = np.tile(VALUES[:, None], 3)
    for channel in range(3):
        counts = cv2.calcHist([image], [channel], None, [256], [0, 256]).ravel().astype(int)
        used = counts[counts > 0]
        if step := (used.sum() - used[-1]) // 255:
            before = np.concatenate([[0], np.cumsum(counts)[:-1]])
            table[:, channel] = (step // 2 + before) // step
    return by_table(image, table)


def _rotate(image: Pixels, degrees: float, **given: Any) -> Pixels:
    """Turn counter-clockwise about the centre."""
    height, width = image.shape[:2]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x = width / 2 - cosine * width / 2 + sine * height / 2
    y = height / 2 - sine * width / 2 - cosine * height / 2
    return affine(image, (cosine, -sine, x, sine, cosine, y), **given)


def affine(
    image: Pixels, matrix: Sequence[float], *, fillcolor: Sequence[int] = (), resample: Any = Resampling.BICUBIC
) -> Pixels:
    """Transform as `PIL.Image.transform` does with `Image.Transform.AFFINE`.

    Args:
        image: [H, W, 3].
        matrix: (a, b, c, d, e, f): the point (x, y) of the result is (a x + b y + c, d x + e y + f) of the image;
            pixels have their centres at halves.
        fillcolor: RGB outside of the image; black if empty.
        resample: bilinear or bicubic, or several, of which one is drawn from `random` as timm does.
    """
    if isinstance(resample, tuple | list):
        resample = random.choice(resample)
    a, b, c, d, e, f = matrix
    centred = np.array([[a, b, c + (a + b - 1) / 2], [d, e, f + (d + e - 1) / 2]])
    flags = INTERPOLATION[resample] | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(  # type: ignore[return-value]
        image, centred, image.shape[1::-1], flags=flags, borderMode=cv2.BORDER_CONSTANT, borderValue=tuple(fillcolor)
    )


def _luminance(image: Pixels) -> Pixels:
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)  # type: ignore[return-value]


def _blended(other: int, factor: float) -> NDArray[Any]:
    """Return the table of Pillow's blend of a constant with the values, which cuts fractions off."""
    share = np.float32(factor)
    return np.clip(other + share * (VALUES - other).astype(np.float32), 0, 255).astype(int)


def _posterize(image: Pixels, bits: int, **_: Any) -> Pixels:
    """Keep the highest bits of every value; 0 bits give a black image."""
    return image if bits >= 8 else by_table(image, VALUES & ~(2 ** (8 - bits) - 1))


_GROWING: dict[str, Callable[..., Pixels]] = {
    "Posterize": _posterize,
    "Solarize": solarize,
    "Color": color,
    "Contrast": _contrast,
    "Brightness": brightness,
    "Sharpness": sharpness,
}
TIMM: dict[str, Callable[..., Pixels]] = {
    "AutoContrast": auto_contrast,
    "Equalize": equalize,
    "Invert": lambda image, **_: cv2.bitwise_not(image),
    "Rotate": _rotate,
    "PosterizeOriginal": _posterize,
    # adds to the values below 128
    "SolarizeAdd": lambda image, add, **_: by_table(image, np.where(VALUES < 128, VALUES + add, VALUES)),
    "Desaturate": lambda image, factor, **_: color(image, min(1.0, max(0.0, 1.0 - factor))),
    "GaussianBlur": gaussian_blur,
    "GaussianBlurRand": lambda image, factor, **_: gaussian_blur(image, random.uniform(0.1, 2.0 * factor)),
    # moves each row, or column, by `factor` times its place
    "ShearX": lambda image, factor, **given: affine(image, (1, factor, 0, 0, 1, 0), **given),
    "ShearY": lambda image, factor, **given: affine(image, (1, 0, 0, factor, 1, 0), **given),
    # by a share of the side, to the left and up
    "TranslateXRel": lambda image, share, **given: affine(image, (1, 0, share * image.shape[1], 0, 1, 0), **given),
    "TranslateYRel": lambda image, share, **given: affine(image, (1, 0, 0, 0, 1, share * image.shape[0]), **given),
    **_GROWING,
    **{f"{name}Increasing": operation for name, operation in _GROWING.items()},
}
"""Operations of timm's RandAugment and AutoAugment by name (`timm.data.auto_augment.NAME_TO_OP`), with its arguments.
"""


class FastJitter:
    """Changes of brightness, contrast, saturation and hue in a drawn order, with the draws of torchvision's jitter."""

    def __init__(self, jitter: ColorJitter) -> None:
        self.jitter = jitter

    def __call__(self, image: Pixels) -> Pixels:
        jitter = self.jitter
        order, *values = jitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
        for number in order.tolist():
            if values[number] is not None:
                image = _JITTER[number](image, values[number])
        return image


_JITTER = (brightness, _contrast, color, hue)
