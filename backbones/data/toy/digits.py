"""Handwritten digits of scikit-learn as a folder of images: a small real classification set without any download.

And drawn JPEG files of the size of photographs, to measure how fast images are read.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.cache import make_once

SIZE = 32
DIGITS = 1
"""Counts up with every change of what is written: results on other images are results on another dataset."""
EVERY = 5
"""Each fifth image of a class is for validation."""


def toy_digits() -> Path:
    """Return the folder with `train/` and `val/`, written on first use. Raises UserError when it cannot be written.

    1,797 images of 8 x 8 (UCI Optical Recognition of Handwritten Digits, the part written by 13 people), scaled up to
    32 x 32 RGB. Writers are not told apart, so training and validation share them.
    """
    return make_once(f"toy_digits-{DIGITS}", _write)


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


QUALITY = 85


def draw_jpegs(count: int, width: int, height: int) -> list[bytes]:
    """Return JPEG files of smooth colors with some noise, with some 0.5 bytes per pixel as those of ImageNet."""
    generator, files = np.random.default_rng(0), []
    for _ in range(count):
        colors = Image.fromarray(generator.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8))
        smooth = np.asarray(colors.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        noisy = (smooth + generator.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "JPEG", quality=QUALITY)
        files.append(stream.getvalue())
    return files
