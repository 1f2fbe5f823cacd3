"""Decoded images of a small split in one block of memory, which forked loader workers share."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from backbones.errors import UserError
from backbones.runtime.threads import usable_cores

LIMIT = 512 * 2**20
PROBES = 32


class Pixels:
    """M images of one number of channels, uint8, one after the other, with their sizes."""

    def __init__(self, block: NDArray[Any], shapes: NDArray[Any]) -> None:
        """Args: block: uint8 [total]; shapes: int64 [M, 2] of (H, W)."""
        self._block, self._shapes = block, shapes
        channels = len(block) // shapes.prod(axis=1).sum()
        self._tail = () if channels == 1 else (channels,)
        self._ends = np.concatenate([[0], np.cumsum(channels * shapes.prod(axis=1))])

    def __getitem__(self, index: int) -> Image.Image:
        """Return a copy of image `index`."""
        start, stop = self._ends[index], self._ends[index + 1]
        return Image.fromarray(self._block[start:stop].reshape(*self._shapes[index], *self._tail))

    @classmethod
    def load(cls, read: Callable[[int], Image.Image], count: int, limit: int | None, *, name: str) -> Self | None:
        """Decode images 0..count-1 in threads.

        Args:
            limit: in bytes. None is returned when a few images spread over the split say that they take more.
            name: the name of the split, for the progress bar.

        Raises:
            UserError: an image cannot be read.
        """
        probes = np.unique(np.linspace(0, count - 1, PROBES).astype(int)).tolist()
        if limit is not None and np.mean([_decoded_bytes(read, index) for index in probes]) * count > limit:
            return None
        parts, shapes = [], []
        with ThreadPoolExecutor(usable_cores()) as pool:
            images = pool.map(lambda index: np.asarray(read(index)), range(count))
            for image in tqdm(images, desc=f"decoding {name}", total=count, delay=2, leave=False, disable=None):
                parts.append(image.reshape(-1))
                shapes.append(image.shape[:2])
        return cls(np.concatenate(parts), np.array(shapes, dtype=np.int64))


def _decoded_bytes(read: Callable[[int], Image.Image], index: int) -> int:
    """Return the size of an image; 0 for a corrupt one, which is named, or replaced, in training."""
    try:
        image = read(index)
    except UserError:
        return 0
    return len(image.getbands()) * image.width * image.height
