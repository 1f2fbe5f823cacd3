"""Batches of a whole training run in one stream of loader workers, from any step on.

Which images form a batch is a function of (seed, epoch), made before any worker starts; how one is augmented of (seed,
epoch, image, repeat), which the dataset gets as its key. Neither depends on workers, so a resumed run sees what an
undisturbed one does, and skipping to its place decodes nothing. Batches are global: under several ranks each takes its
part of every batch.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, tee
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from transfer.core.errors import UserError
from transfer.core.grouped import grouped_by
from transfer.core.process import ALONE, Ranks, part_of_rank
from transfer.core.seeding import restored_generators
from transfer.data.loading.workers import Collate, worker_batches


def pk_batches(identities: Sequence[int], epoch: int, *, p: int, k: int, seed: int) -> list[list[int]]:
    """Return batches of P identities x K images each (Hermans et al. 2017, arXiv 1703.07737, section 2).

    The epoch of the person re-identification codebases: the images of every identity are shuffled and cut into groups
    of K, a rest is left out, and an identity with fewer than K images is drawn with replacement to one group. Then, as
    long as P identities have groups left, P of them are drawn at random and each gives one group.

    Args:
        identities: identity of each of M images.
        p: identities per batch.
        k: images per identity.
        seed: the seed of the run.
        epoch: the epoch of the batches.

    Returns:
        Lists of P * K indices, the images of one identity side by side.

    Raises:
        UserError: there are fewer than P identities.
    """
    images = grouped_by(range(len(identities)), identities.__getitem__)
    if len(images) < p:
        fix = "lower P to at most that"
        raise UserError(f"a batch takes {p} identities, but the training set has {len(images)}: {fix}")
    generator = np.random.default_rng([seed, epoch])
    groups = {identity: _groups(images[identity], k, generator) for identity in sorted(images)}
    available = sorted(groups)
    batches = []
    while len(available) >= p:
        drawn = [available[position] for position in generator.choice(len(available), size=p, replace=False)]
        batches.append([*chain.from_iterable(groups[identity].pop(0) for identity in drawn)])
        available = [identity for identity in available if groups[identity]]
    return batches


def _groups(indices: list[int], k: int, generator: np.random.Generator) -> list[list[int]]:
    """Return `indices` in random order, cut into groups of K."""
    if len(indices) < k:
        return [generator.choice(indices, size=k, replace=True).tolist()]
    order = generator.permutation(indices).tolist()
    return [order[start : start + k] for start in range(0, len(order) - k + 1, k)]


def shuffled_batches(n: int, batch: int, epoch: int, *, seed: int, drop_last: bool = True) -> list[list[int]]:
    """Return 0..n-1 in random order, cut into batches. Raises UserError when `drop_last` leaves no batch."""
    if drop_last and n < batch:
        raise UserError(f"a batch takes {batch} images, but the training set has {n}: lower the batch size")
    order = np.random.default_rng([seed, epoch]).permutation(n).tolist()
    stop = n - n % batch if drop_last else n
    return [order[start : start + batch] for start in range(0, stop, batch)]


def repeated_batches(n: int, batch: int, epoch: int, *, repeats: int, seed: int) -> list[list[int]]:
    """Return batches for repeated augmentation (arXiv 1902.05509): several copies of each image, augmented separately.

    The epoch of DeiT (arXiv 2012.12877, section 6; `RASampler`): 0..n-1 in random order, each `repeats` times in a row.
    Of these the epoch takes the first n, rounded down to a multiple of 256 (all n below 256), so about n / `repeats`
    images. Within a batch first copies come first, then second ones: ranks take contiguous parts, so with more ranks
    than `repeats` each sees copies of different images, as there.

    Args:
        n: images.
        batch: images per (global) batch; a rest is left out.
        repeats: copies of each image.
        seed: the seed of the run.
        epoch: the epoch of the batches.

    Raises:
        UserError: an epoch has no whole batch.
    """
    selected = n // 256 * 256 or n
    if selected < batch:
        raise UserError(f"a batch takes {batch} images, but an epoch has {selected}: lower the batch size")
    order = np.random.default_rng([seed, epoch]).permutation(n)
    copies = np.repeat(order, repeats)[:selected]
    places = np.arange(selected // batch * batch).reshape(-1, batch)
    by_copy = np.argsort(places % repeats, axis=1, kind="stable")
    batches: list[list[int]] = copies[np.take_along_axis(places, by_copy, axis=1)].tolist()
    return batches


SampleKey = tuple[int, int, int]


@dataclass(frozen=True)
class StreamPosition:
    """The position of a step: its epoch, its index in it, and the epoch's length in steps; all count from 0.

    `total` is the steps of all epochs where their lengths differ; 0: all are as long as this one. `ends_epoch`: whether
    it is the last step that is taken in the epoch, of which the last one may be cut short.
    """

    epoch: int
    index: int
    length: int
    total: int = 0
    ends_epoch: bool = False


def steps_taken(length: int, epochs: float) -> int:
    """Return the steps of so many epochs of `length` steps; at least one."""
    return max(math.floor(epochs * length + 0.5), 1)  # `round` would round 7.5 up and 22.5 down


def total_steps(lengths: Sequence[int], epochs: float) -> int:
    """Return the steps of a training of so many epochs of these lengths."""
    return sum(steps_taken(length, min(epochs - number, 1)) for number, length in enumerate(lengths))


@dataclass(frozen=True, eq=False)
class RunLoader:
    """Loads the batches that `fit` trains on.

    Args:
        dataset: maps a key (epoch, index, repeat) to a sample; `repeat` counts earlier uses of the index in the epoch.
        epoch_batches: epoch -> the *global* batches of sample indices; a rank loads its contiguous part of each.
        workers: loader processes; 0 loads in this one.
        collate: samples -> batch; None: torch's default, which stacks tensors.
        parts: micro-batches per step; each is shared among the ranks, so that they hold what one process's would.
        lengths: the batches of each epoch, where they differ.
    """

    dataset: Dataset[Any]
    epoch_batches: Callable[[int], list[list[int]]]
    workers: int = 0
    parts: int = 1
    ranks: Ranks = ALONE
    on_gpu: bool = False
    collate: Collate | None = None
    lengths: Sequence[int] = ()

    def stream(self, epoch: int, index: int, epochs: float) -> Iterator[tuple[StreamPosition, Any]]:
        """Yield the position and this rank's part of every batch, from step `index` of `epoch` to the end of epoch
        `epochs`, which is cut short if it is a fraction.
        """
        steps, ahead = tee(self._steps(epoch, index, epochs))
        batches = worker_batches(
            _Batched(self.dataset),
            (keys for _, keys in ahead),
            workers=self.workers,
            on_gpu=self.on_gpu,
            collate=self.collate,
            ahead=4,
        )
        return zip((position for position, _ in steps), batches)

    def _steps(self, epoch: int, index: int, epochs: float) -> Iterator[tuple[StreamPosition, list[SampleKey]]]:
        """Yield the position and the keys of this rank's part of every batch."""
        total = total_steps(self.lengths, epochs)
        for current in range(epoch, math.ceil(epochs)):
            seen: Counter[int] = Counter()
            batches = self.epoch_batches(current)
            taken = steps_taken(len(batches), min(epochs - current, 1))
            for step, batch in enumerate(batches[:taken]):
                keys = []
                for sample in batch:
                    keys.append((current, sample, seen[sample]))
                    seen[sample] += 1
                if current > epoch or step >= index:
                    size = -(-len(keys) // self.parts)
                    parts = (part_of_rank(keys[at : at + size], self.ranks) for at in range(0, len(keys), size))
                    position = StreamPosition(current, step, len(batches), total, step + 1 == taken)
                    yield position, [*chain.from_iterable(parts)]


class _Batched(Dataset[Any]):
    """A dataset of which a batch's samples are taken one after the other, and the generators restored once."""

    def __init__(self, dataset: Dataset[Any]):
        self.dataset = dataset

    def __getitems__(self, keys: list[SampleKey]) -> list[Any]:
        with restored_generators():
            return [self.dataset[key] for key in keys]
