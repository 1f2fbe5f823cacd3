"""Batches of an epoch as lists of indices: a function of (seed, epoch), made before any worker starts.

Batches are global: under several ranks each takes its part of every batch.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from backbones.errors import UserError


def pk_batches(identities: Sequence[int], *, p: int, k: int, seed: int, epoch: int) -> list[list[int]]:
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
    images = defaultdict(list)
    for index, identity in enumerate(identities):
        images[identity].append(index)
    if len(images) < p:
        raise UserError(
            f"a batch takes {p} identities, but the training set has {len(images)}: lower P to at most that"
        )
    generator = np.random.default_rng([seed, epoch])
    groups = {identity: _groups(images[identity], k, generator) for identity in sorted(images)}
    available = sorted(groups)
    batches = []
    while len(available) >= p:
        drawn = [available[position] for position in generator.choice(len(available), size=p, replace=False)]
        batches.append([index for identity in drawn for index in groups[identity].pop(0)])
        available = [identity for identity in available if groups[identity]]
    return batches


def _groups(indices: list[int], k: int, generator: np.random.Generator) -> list[list[int]]:
    """Return `indices` in random order, cut into groups of K."""
    if len(indices) < k:
        return [generator.choice(indices, size=k, replace=True).tolist()]
    order = generator.permutation(indices).tolist()
    return [order[start : start + k] for start in range(0, len(order) - k + 1, k)]


def shuffled_batches(n: int, batch: int, *, seed: int, epoch: int, drop_last: bool = True) -> list[list[int]]:
    """Return 0..n-1 in random order, cut into batches. Raises UserError when `drop_last` leaves no batch."""
    if drop_last and n < batch:
        raise UserError(f"a batch takes {batch} images, but the training set has {n}: lower the batch size")
    order = np.random.default_rng([seed, epoch]).permutation(n).tolist()
    stop = n - n % batch if drop_last else n
    return [order[start : start + batch] for start in range(0, stop, batch)]


def repeated_batches(n: int, batch: int, *, repeats: int, seed: int, epoch: int) -> list[list[int]]:
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
    batches = []
    for start in range(0, selected - batch + 1, batch):
        places = np.arange(start, start + batch)
        batches.append(copies[places[np.argsort(places % repeats, kind="stable")]].tolist())
    return batches
