"""Parts of a split chosen by what the images contain: the same on every machine, however the images are stored.

Shapes: M images.
"""

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from backbones.data.splits.integrity import read_once
from backbones.data.splits.split import Split
from backbones.errors import UsageError, UserError

RULE = "pixels of lossless images in 8 bits, bytes of others"
"""Part of the key of remembered digests: digests by another rule are not taken for these."""


def take_fraction(split: Split, share: float, *, seed: int = 0, drop_corrupt: bool = False) -> Split:
    """Return the first ceil(share * n) of each class's n images, ranked by content and seed; shares of a seed are
    nested.

    Raises:
        UsageError: the share is not in (0, 1].
        UserError: an image cannot be read, or is corrupt and `drop_corrupt` is off.
    """
    if not 0 < share <= 1:
        raise UsageError(f"label fraction {share}: it must be above 0 and at most 1")
    exact = Fraction(str(share))  # 0.1 * 30 is above 3 in floating point
    if share == 1:
        return split
    return select_by_content(split, lambda n: math.ceil(exact * n), seed=seed, skip=drop_corrupt)


def take_per_class(split: Split, n: int, *, drop_corrupt: bool = False) -> Split:
    """Return N images of each class, or all of a smaller one, ranked by content; subsets are nested.

    Raises:
        UsageError: N is below 1.
        UserError: an image cannot be read, or is corrupt and `drop_corrupt` is off.
    """
    if n < 1:
        raise UsageError(f"subset {n}: it must be at least 1 image per class")
    return select_by_content(split, lambda _: n, seed=0, skip=drop_corrupt)


def select_by_content(split: Split, count: Callable[[int], int], *, seed: int, skip: bool = False) -> Split:
    """Return the first `count(n)` of each class's n images, in their old order.

    An image's rank is the sha256 of (its content digest, seed); equal images are ranked by name.
    """
    keep = []
    order = np.argsort(split.labels, kind="stable")
    starts = np.flatnonzero(np.diff(split.labels[order], prepend=-1))
    groups = np.split(order, starts[1:])
    for group in tqdm(groups, desc=f"ranking {split.name}", unit=" classes", delay=2, leave=False, disable=None):
        digests = content_digests(split, group, skip=skip)
        ranks = [hashlib.sha256(digest + str(seed).encode()).digest() for digest in digests]
        ranked = sorted(range(len(group)), key=lambda place: (ranks[place], split.names[int(group[place])]))
        keep.append(group[ranked[: count(len(group))]])
    return split.select(np.sort(np.concatenate(keep)) if keep else order)


def all_digests(split: Split) -> list[bytes]:
    """Return the content digest of every image of a split, taken once. Raises UserError as `content_digests`."""
    if split.digests is None:
        split.digests = content_digests(split, np.arange(len(split)))
    return split.digests


def content_digests(split: Split, indices: NDArray[Any], *, skip: bool = False) -> list[bytes]:
    """Return the content digests of these images: sha256 of the pixels, of a JPEG or WEBP of the encoded bytes.

    They are kept in the cache folder under a key of path, size and time of them all, so that each state of a class is
    read once. With `skip` a corrupt image, which is left out later, is given the digest of its bytes.

    Raises:
        UserError: an image cannot be read, or is corrupt.
    """
    places = indices.tolist()
    listing = [RULE + " with alpha" * (split.channels == 4), *split.stamps(indices)]
    digests = read_once(lambda row: _digest(split, places[row], skip), listing, f"reading {split.name}")
    return list(map(bytes.fromhex, digests))


def _digest(split: Split, index: int, skip: bool) -> str:
    try:
        return split.content_digest(index)
    except UserError:
        if not skip:
            raise
        return hashlib.sha256(split.encoded(index)).hexdigest()
