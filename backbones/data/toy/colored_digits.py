"""The images of the toy sets in published layouts: handwritten digits of scikit-learn in two colors of their own each.

Every digit lies in one of the sets only, so that the sets are as different as so few writers allow.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.toy.digits import enlarge

VERSION = 1
"""Counts up with every change of what is written: results on other images are results on another dataset."""
TISSUE_DIGITS = (0, 1, 3, 4, 5, 6, 7, 9)
"""The digits with most images; the others have too few left for the set of eight tissues."""
IMAGES_PER_CLASS = {"cub200": 20, "cars": 20, "cifar100": 20, "dtd": 20, "colorectal": 20, "pets": 20, "uc_merced": 20}
IMAGES_PER_CLASS |= {"caltech101": 38}
"""Images a class; the sets take them one after the other."""
PERIOD, TRAIN_IMAGES = 20, 14


@dataclass(frozen=True)
class ToyImage:
    """One image of a set."""

    digit: int
    place: int
    """Among scikit-learn's images of the digit."""
    number: int
    """From 0, within its class and set."""
    image: Image.Image

    @property
    def for_training(self) -> bool:
        """Whether lists put it into training."""
        return self.number % PERIOD < TRAIN_IMAGES


def toy_images(name: str) -> Iterator[ToyImage]:
    """Yield the images of the set `name` of `IMAGES_PER_CLASS`, by class."""
    digits, turn = _digits(), list(IMAGES_PER_CLASS).index(name)
    for digit in range(10):
        if name == "colorectal" and digit not in TISSUE_DIGITS:
            continue
        images = digits[digit]
        before = [other for other in list(IMAGES_PER_CLASS)[:turn] if other != "colorectal" or digit in TISSUE_DIGITS]
        start = sum(IMAGES_PER_CLASS[other] for other in before)
        for number, pixels in enumerate(images[start : start + IMAGES_PER_CLASS[name]]):
            rng = np.random.default_rng([VERSION, turn, digit, number])
            yield ToyImage(digit, start + number, number, _color(enlarge(pixels), rng))


@functools.cache
def _digits() -> list[NDArray[Any]]:
    """Return the images of each digit, [M, 8, 8]; read once for the sets of a run."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return [digits.images[digits.target == digit] for digit in range(10)]


def _color(grey: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a light digit on a dark ground."""
    light, dark = rng.integers(150, 256, 3), rng.integers(0, 106, 3)
    share = np.asarray(grey, dtype=np.float64)[:, :, None] / 255
    return Image.fromarray((dark + (light - dark) * share + 0.5).astype(np.uint8))


def save(image: Image.Image, path: Path) -> None:
    """Write an image in the format that the suffix names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jpg":
        image.save(path, quality=95)
    else:
        image.save(path)
