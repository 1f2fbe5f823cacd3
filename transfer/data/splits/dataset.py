"""A split as a dataset of transformed images, whose augmentation is a function of (seed, epoch, sample).

Corrupt images that a training run met and replaced are shared by the loader's processes.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from transfer.core.errors import UserError
from transfer.core.seeding import seeded
from transfer.data.loading.images import Key
from transfer.data.splits.split import LIMIT, Split


class DamagedImages:
    """The indices of at most `limit` corrupt images; loader processes that are started later share it.

    Args:
        limit: images that may be replaced.
        known: indices that were found before an interruption; they count.
    """

    def __init__(self, limit: int, known: Sequence[int] = ()) -> None:
        free = max(limit - len(known), 0)
        self._limit = limit
        self._found = torch.tensor([*known, *[-1] * free], dtype=torch.int64).share_memory_()
        self._lock = multiprocessing.Lock()

    def add(self, index: int, error: UserError) -> None:
        """Note a corrupt image. Raises UserError when there are more than the limit."""
        with self._lock:
            if index in self.indices():
                return
            free = (self._found < 0).nonzero()
            if not len(free):
                raise UserError(f"{error}; {len(self._found)} corrupt images were replaced, as --max-replaced allows")
            self._found[free[0]] = index

    def indices(self) -> list[int]:
        """Return the indices, in the order in which they were met."""
        return [index for index in self._found.tolist() if index >= 0]


Views = Tensor | list[Tensor]


def takes_pixels(transform: object) -> bool:
    """Return whether a transform takes uint8 pixels [C, H, W], not a PIL image."""
    return bool(getattr(transform, "takes_pixels", False))


class SplitDataset(Dataset[tuple[Any, ...]]):
    """A torch dataset of the images of a split with their labels.

    A key is an index, for evaluation images, or (epoch, index, repeat), for training: then the transform runs
    under `seeded(seed, epoch, index, repeat)`. `repeat` tells apart the draws of one image within an epoch.

    Args:
        split: where the images come from.
        transform: PIL image -> tensor, or a list of tensors (crops). With a true `takes_pixels` it gets uint8 pixels
            [C, H, W] in place of a PIL image; see `Split.reader`.
        seed: the seed of the augmentation.
        extra: index -> tensor, appended to each item.
        preload: keep the decoded images in memory (a byte per channel, shared by forked workers and by all datasets of
            the split; twice that while loading). None: when they take at most `LIMIT` bytes (512 MiB).
    """

    def __init__(
        self,
        split: Split,
        transform: Callable[[Any], Views],
        *,
        seed: int = 0,
        extra: Callable[[int], Tensor] | None = None,
        preload: bool | None = None,
    ) -> None:
        self.split, self.transform, self.seed, self.extra = split, transform, seed, extra
        self.read = split.reader(takes_pixels(transform))
        self.labels = torch.from_numpy(split.labels)
        self.damaged: DamagedImages | None = None
        if preload is not False:
            split.preload(None if preload else LIMIT)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: Key) -> tuple[Any, ...]:
        """Return (transform(image), label as a scalar tensor[, extra(index)]). Raises UserError for an unreadable
        image.
        """
        image, index = self._readable(key[1] if isinstance(key, tuple) else key)
        if isinstance(key, tuple):
            with seeded(self.seed, *key):
                views = self.transform(image)
        else:
            views = self.transform(image)
        item = (views, self.labels[index])
        return (*item, self.extra(index)) if self.extra else item

    def replace_damaged(self, limit: int, known: Sequence[int] = ()) -> None:
        """Give the next readable image in place of a corrupt one, for at most `limit` different ones, with those that
        are known already.
        """
        self.damaged = DamagedImages(limit, known)

    def replaced_images(self) -> list[int]:
        """Return the indices of the images that were replaced so far."""
        return [] if self.damaged is None else self.damaged.indices()

    def _readable(self, index: int) -> tuple[Any, int]:
        """Return an image and its index: the wanted one's or, where corrupt images are replaced, the next readable."""
        for neighbour in range(index, index + len(self)):
            place = neighbour % len(self)
            try:
                return self.read(place), place
            except UserError as error:
                if self.damaged is None:
                    raise
                self.damaged.add(place, error)
        raise UserError(f"split {self.split.name}: none of its {len(self):,} images can be read")
