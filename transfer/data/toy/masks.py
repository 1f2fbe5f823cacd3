"""Shapes filled with rows, columns or checks, with their masks: segmentation without any download.

What tells the class of a pixel is the pattern around it: outline, place, and both colors of a shape, a light and a dark
one, are drawn at random, as is the ground. Patterns lie on one grid in all images, so that even a linear layer of
pixels tells them apart. Rims are 255, to be ignored, as those of VOC.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from transfer.core.cache import make_once
from transfer.data.toy.digits import save

VERSION = 1
"""Counts up with every change of what is written: results on other images are results on another dataset."""
COUNTS = {"train": 64, "val": 32}
SIDE = 96
"""Height and width of an image in pixels."""
SIDES = (32, 64)
"""Shortest and longest side of a shape in pixels."""
STRIPE = 4
"""Width of a stripe in pixels."""


def _write(root: Path) -> None:
    for place, (split, count) in enumerate(COUNTS.items()):
        for number in range(count):
            picture, mask = _scene(np.random.default_rng([VERSION, place, number]))
            save(Image.fromarray(picture), root / "images" / split / f"{number:04d}.jpg", quality=90)
            save(Image.fromarray(mask), root / "masks" / split / f"{number:04d}.png")


def _scene(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw an image; return uint8 [96, 96, 3] and its mask, uint8 [96, 96]."""
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    canvas = np.array(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.float64)
    mask: NDArray[Any] = np.zeros((SIDE, SIDE), np.uint8)
    rows, columns = np.mgrid[:SIDE, :SIDE] // STRIPE % 2
    for _ in range(int(rng.integers(2, 5))):
        label, outline = int(rng.integers(1, 4)), ("ellipse", "rectangle", "polygon")[int(rng.integers(3))]
        width, height = rng.integers(*SIDES, 2).tolist()
        left, top = int(rng.integers(SIDE - width)), int(rng.integers(SIDE - height))
        right, bottom = left + width, top + height
        corners = [(left, bottom), (right, bottom), (int(rng.integers(left, right)), top)]
        shape = Image.new("L", (SIDE, SIDE))
        drawn = corners if outline == "polygon" else (left, top, right, bottom)
        getattr(ImageDraw.Draw(shape), outline)(drawn, fill=label, outline=255)
        pattern, new = (rows, columns, rows ^ columns)[label - 1], np.asarray(shape) > 0
        mask = np.where(new, np.asarray(shape), mask)
        colors = rng.uniform([[150], [0]], [[256], [106]], (2, 3))  # light and dark
        canvas[new] = colors[pattern[new]]
    return (canvas + rng.normal(0, 4, canvas.shape)).clip(0, 255).astype(np.uint8), mask


GENERATORS: dict[str, Callable[[], Path]] = {"toy_masks": partial(make_once, f"toy_masks-{VERSION}", _write)}
"""Functions that give the folder of the set, drawn on first use (UserError if that fails)."""
