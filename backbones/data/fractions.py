"""Parts of a split chosen by what the images contain: the same on every machine, in a folder as in Parquet.

Letters: M images.
"""

import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
from tqdm import tqdm

from backbones.data.cache import recall, remember
from backbones.data.splits import Split
from backbones.engine.context import usable_cores
from backbones.errors import WrongWords

BYTES = hashlib.sha256().digest_size


def share_of(split: Split, share: float, *, seed: int = 0) -> Split:
    """The first ceil(share * n) of each class's n images, ranked by content and seed; shares of a seed are nested.

    Raises:
        WrongWords: the share is not in (0, 1].
        UserError: an image cannot be read.
    """
    if not 0 < share <= 1:
        raise WrongWords(f"label fraction {share}: it must be above 0 and at most 1")
    exact = Fraction(str(share))  # 0.1 * 30 is above 3 in floating point
    return split if share == 1 else first_by_content(split, lambda n: math.ceil(exact * n), seed=seed)


def subset_of(split: Split, n: int) -> Split:
    """N images of each class, or all of a smaller one, ranked by content; subsets are nested.

    Raises:
        WrongWords: N is below 1.
        UserError: an image cannot be read.
    """
    if n < 1:
        raise WrongWords(f"subset {n}: it must be at least 1 image per class")
    return first_by_content(split, lambda _: n, seed=0)


def first_by_content(split: Split, count: Callable[[int], int], *, seed: int) -> Split:
    """The first `count(n)` of each class's n images, in their old order.

    An image's rank is the sha256 of (sha256 of its encoded bytes, seed); equal images are ranked by name.
    """
    keep = []
    order = np.argsort(split.labels, kind="stable")
    starts = np.flatnonzero(np.diff(split.labels[order], prepend=-1))
    groups = np.split(order, starts[1:])
    for group in tqdm(groups, desc=f"ranking {split.name}", unit=" classes", delay=2, leave=False, disable=None):
        digests = content_digests(split, group)
        ranks = [hashlib.sha256(digest + str(seed).encode()).digest() for digest in digests]
        ranked = sorted(range(len(group)), key=lambda place: (ranks[place], split.names[int(group[place])]))
        keep.append(group[ranked[: count(len(group))]])
    return split.select(np.sort(np.concatenate(keep)) if keep else order)


def content_digests(split: Split, indices: np.ndarray) -> list[bytes]:
    """sha256 of the encoded bytes of these images.

    They are kept in the cache folder under a key of path, size and time of them all, so that each state of a class is
    read once.
    """
    key = hashlib.sha256("\n".join(split.stamps(indices)).encode()).hexdigest()
    block = recall(f"digests/{key}")
    if block is None or len(block) != BYTES * len(indices):
        with ThreadPoolExecutor(usable_cores()) as pool:
            block = b"".join(bytes.fromhex(digest) for digest in pool.map(split.content_digest, indices.tolist()))
        remember(f"digests/{key}", block, what="the digests of the images")
    return [block[start : start + BYTES] for start in range(0, len(block), BYTES)]
