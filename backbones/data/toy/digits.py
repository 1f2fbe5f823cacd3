"""Handwritten digits of scikit-learn as a folder of images: a small real classification set without any download."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.cache import make_once

SIZE = 32
VERSION = 1
"""Counts up with every change of what is written: results on other images are results on another dataset."""
EVERY = 5
"""Each fifth image of a class is for validation."""


def toy_digits() -> Path:
    """Return the folder with `train/` and `val/`, written on first use. Raises UserError when it cannot be written.

    1,797 images of 8 x 8 (UCI Optical Recognition of Handwritten Digits, the part written by 13 people), scaled up to
    32 x 32 RGB. Writers are not told apart, so training and validation share them.
    """
    return make_once(f"toy_digits-{VERSION}", _write)


def _write(root: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    for digit in range(10):
        for number, pixels in enumerate(digits.images[digits.target == digit]):
            folder = root / ("val" if number % EVERY == EVERY - 1 else "train") / str(digit)
            folder.mkdir(parents=True, exist_ok=True)
            enlarge(pixels).convert("RGB").save(folder / f"{number:04d}.png")


def enlarge(pixels: NDArray[Any]) -> Image.Image:
    """Return counts of set pixels, 0..16 [8, 8], as a grey image of 32 x 32."""
    grey = Image.fromarray((pixels * 255 / 16 + 0.5).astype(np.uint8))
    return grey.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
