"""A split as a dataset of transformed images, whose augmentation is a function of (seed, epoch, sample)."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from transfer.core.seeding import seeded
from transfer.data.loading.images import Key
from transfer.data.splits.split import PRELOAD_BYTES, Split


class SplitDataset(Dataset[tuple[Any, ...]]):
    """A torch dataset of the images of a split with their labels.

    A key is an index, for evaluation images, or (epoch, index, repeat), for training: then the transform runs
    under `seeded(seed, epoch, index, repeat)`. `repeat` tells apart the draws of one image within an epoch.

    Args:
        split: where the images come from.
        transform: PIL image -> tensor, or a sequence of tensors (crops). With a true `takes_pixels` it gets uint8
            pixels [C, H, W] in place of a PIL image; see `Split.reader`.
        seed: the seed of the augmentation.
        extra: index -> tensor, appended to each item.
        preload: keep the decoded images in memory (a byte per channel, shared by forked workers and by all datasets of
            the split; twice that while loading) when they take at most `PRELOAD_BYTES` bytes (512 MiB).
    """

    def __init__(
        self,
        split: Split,
        transform: Callable[[Any], Tensor | Sequence[Any]],
        *,
        seed: int = 0,
        extra: Callable[[int], Tensor] | None = None,
        preload: bool = True,
    ) -> None:
        self.split, self.transform, self.seed, self.extra = split, transform, seed, extra
        self.read = split.reader(getattr(transform, "takes_pixels", False))
        self.labels = torch.from_numpy(split.targets)
        if preload:
            split.preload(PRELOAD_BYTES)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: Key) -> tuple[Any, ...]:
        """Return (transform(image), label as a scalar tensor, or all [L] that are right[, extra(index)]).

        Raises UserError for an unreadable image.
        """
        index = key[1] if isinstance(key, tuple) else key
        image = self.read(index)
        with seeded(self.seed, *key) if isinstance(key, tuple) else nullcontext():
            views = self.transform(image)
        item = (views, self.labels[index])
        return (*item, self.extra(index)) if self.extra else item
