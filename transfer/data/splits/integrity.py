"""Images checked and chosen by what they contain, the same on every machine, however the images are stored.

Every image is decoded once before it is used, so that a corrupt file is reported at the start; test images among the
training images are found by their bytes, under any name. Shapes: M images.
"""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from transfer.core.cache import recall, remember
from transfer.core.errors import MissingInput, UserError, shortened
from transfer.data.loading.read_image import LEAVE_OUT
from transfer.data.splits.manifest import in_threads
from transfer.data.splits.split import Look, Split

SHOWN_FILES = 5


def check_present(paths: Sequence[str], *, name: str, listed_in: Path | None = None) -> None:
    """Raise UserError that names the files that cannot be opened, and the list of all."""
    missing = []
    for path in paths:
        try:
            os.stat(path)  # noqa: PTH116 (called 100,000 times)
        except OSError as error:
            missing.append(f"{os.path.normpath(path)}: {error.strerror}")
    if missing:
        hint = f"\n{listed_in} names them: extract the archive of the images again" if listed_in else ""
        raise UserError(f"{name}: {len(missing)} file(s) of the dataset cannot be opened{_list_some(missing)}{hint}")


def check_split(
    split: Split, *, name: str, skip: bool = False, look: Callable[[int], Look] | None = None
) -> tuple[NDArray[Any], list[Look], list[str]]:
    """Return the indices [K] of the images that cannot be read, in order, looks at the others, and notes on images
    that are not stored upright or cannot be read.

    Args:
        split: the images.
        name: what messages call them.
        skip: return the unreadable images instead of raising.
        look: looks at an image by its index, or raises UserError; None: `split.look`, at images as stored.

    Raises:
        MissingInput: the disk does not give an image.
        UserError: there are unreadable images, and `skip` is off.
    """
    form = "turn, size, mode or fault" if look is None else "turn and size, or fault"
    look = look or (replace(split, upright=False) if split.upright else split).look

    def verdict(index: int) -> Look | str:
        try:
            return look(index)
        except MissingInput:  # of a lost disk, which nothing remembers as a corrupt image
            raise
        except UserError as error:
            return str(error).removesuffix(LEAVE_OUT)

    rule = f"{form}, by Pillow {PIL.__version__}"  # another version may read an image that this one cannot
    verdicts = read_once(verdict, [rule, *split.stamps(range(len(split)))], f"checking {name}")
    bad = {index: result for index, result in enumerate(verdicts) if isinstance(result, str)}
    if bad and not skip:
        fix = "restore or convert them, or exclude them with `--drop-corrupt`"
        listed = _list_some([*bad.values()])
        raise UserError(f"{name}: {len(bad)} of {len(verdicts)} images cannot be read{listed}\n{fix}")
    looks = [result for result in verdicts if not isinstance(result, str)]
    turned = sum(turn > 1 for turn, *_ in looks)
    read = "opened upright" if split.upright else "read as stored"
    notes = [f"{turned} images have an EXIF orientation; they are {read}"] if turned else []
    names = shortened([split.names[index] for index in bad])
    notes += [f"{len(bad)} excluded, as they cannot be read: {names}"] if bad else []
    return np.array([*bad], dtype=np.int64), looks, notes


def pictures_of(looks: Sequence[Look]) -> dict[str, Any]:
    """Return the smallest and the largest image's [width, height] in pixels, by area, and the number of each mode."""
    sizes = sorted({(width * height, width, height) for _, width, height, *_ in looks})
    modes = Counter(mode for look in looks for mode in look[3:4])
    ends = {"smallest": [*sizes[0][1:]], "largest": [*sizes[-1][1:]]} if sizes else {}
    return ends | ({"modes": dict(modes.most_common())} if modes else {})


def read_once(value: Callable[[int], Any], listing: Sequence[str], what: str) -> list[Any]:
    """Return a plain value for each image by its index, taken in threads (PIL releases the interpreter's lock).

    They are kept in the cache folder under a key of the listing: each state of a dataset is read once.

    Args:
        value: gives the value of an image. Its errors are raised.
        listing: what is done, and the stamps of all images (see `Split.stamps`).
        what: for the progress bar, as in "reading NAME".
    """
    state = "\n".join([f"up to {Image.MAX_IMAGE_PIXELS} pixels", *listing])
    key = f"read/{hashlib.sha256(state.encode()).hexdigest()}.json"
    count = len(listing) - 1
    try:
        stored = json.loads(recall(key) or b"")
    except ValueError:
        stored = None
    if isinstance(stored, list) and len(stored) == count:
        return stored
    values = list(in_threads(value, range(count), what, unit=" images"))
    remember(key, json.dumps(values).encode(), what=what)
    return values


def _list_some(entries: Sequence[str]) -> str:
    rest = f"\n  and {len(entries) - SHOWN_FILES} more" if len(entries) > SHOWN_FILES else ""
    return ":" + "".join(f"\n  {entry}" for entry in entries[:SHOWN_FILES]) + rest


DIGEST_RULE = "pixels of lossless images in 8 bits, bytes of others"
"""Part of the key of remembered digests: digests by another rule are not taken for these."""


def take_fraction(split: Split, share: float, *, seed: int = 0, drop_corrupt: bool = False) -> Split:
    """Return the first ceil(share * n) of each class's n images, ranked by content and seed; shares of a seed are
    nested.

    Raises:
        UserError: an image cannot be read, or is corrupt and `drop_corrupt` is off.
    """
    exact = Fraction(str(share))  # 0.1 * 30 is above 3 in floating point
    if share == 1:
        return split
    return select_by_content(split, lambda n: math.ceil(exact * n), seed=seed, skip=drop_corrupt)


def hold_out(split: Split, share: float, *, drop_corrupt: bool = False) -> tuple[Split, Split]:
    """Return the split without ceil(share * n) of each class's n images, chosen by content, and these images.

    Raises:
        UserError: an image cannot be read, or is corrupt and `drop_corrupt` is off, or none is left.
    """
    held = take_fraction(split, share, drop_corrupt=drop_corrupt)
    if len(held) == len(split):
        raise UserError(f"`held_out: {share:g}` leaves none of the {len(split)} training images; lower it")
    taken = set(held.names)
    rest = np.array([index for index, name in enumerate(split.names) if name not in taken], dtype=np.int64)
    return split.select(rest), held


def select_by_content(split: Split, count: Callable[[int], int], *, seed: int = 0, skip: bool = False) -> Split:
    """Return the first `count(n)` of each class's n images, or all of fewer, in their old order.

    An image's rank is the sha256 of (its content digest, seed); equal images are ranked by name. Smaller choices are
    parts of larger ones.

    Raises:
        UserError: an image cannot be read, or is corrupt and `skip` is off.
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


def content_digests(split: Split, indices: NDArray[Any] | None = None, *, skip: bool = False) -> list[bytes]:
    """Return the content digests of these images, or of all; see `image_digest`.

    They are kept in the cache folder under a key of path, size and time of them all, so that each state of a class is
    read once. With `skip` a corrupt image, which is left out later, is given the digest of its bytes.

    Raises:
        UserError: an image cannot be read, or is corrupt.
    """
    places = list(range(len(split))) if indices is None else indices.tolist()
    rule = f"{DIGEST_RULE} with alpha" if split.channels == 4 else DIGEST_RULE
    listing = [rule, *split.stamps(places)]
    digests = read_once(lambda row: _digest(split, places[row], skip), listing, f"reading {split.name}")
    return list(map(bytes.fromhex, digests))


def _digest(split: Split, index: int, skip: bool) -> str:
    try:
        return split.content_digest(index)
    except UserError:
        if not skip:
            raise
        return hashlib.sha256(split.encoded(index)).hexdigest()


OVERLAP_LIMIT = 0.01
"""Share of the test images from which on an overlap is an error; some published sets have a few copies."""

Images = tuple[Sequence[str], NDArray[Any]]
"""Names of images, and the sha256 of the bytes of each, uint8 [M, 32]."""


def shared_images(first: Images, second: Images) -> list[tuple[int, int]]:
    """Return the indices (in the first, in the second) of each image of the second that has a copy in the first."""
    digests, others = (np.ascontiguousarray(contents).view("S32").ravel() for _, contents in (first, second))
    places = {digests[place]: place for place in np.flatnonzero(np.isin(digests, others)).tolist()}
    return [(places[others[row]], row) for row in np.flatnonzero(np.isin(others, digests)).tolist()]


def overlap_notes(name: str, images: Mapping[str, Images], *, trained: str = "", allowed: bool = False) -> list[str]:
    """Return a line for each test split that shares images with the training split.

    Args:
        name: the dataset.
        images: by split; all but "train" are scored.
        trained: the name of the training set, if it is another one.
        allowed: never raise.

    Raises:
        UserError: they are at least `OVERLAP_LIMIT` of a split.
    """
    notes = []
    for split, (names, contents) in images.items():
        pairs = shared_images(images["train"], (names, contents)) if "train" in images and split != "train" else []
        if not pairs:
            continue
        examples = shortened([f"{names[row]} = {images['train'][0][place]}" for place, row in pairs], 3)
        of_set = f" of {trained}" if trained else ""
        note = f"{len(pairs)} of {len(names)} {split} images are also training images{of_set}: {examples}"
        if len(pairs) >= OVERLAP_LIMIT * len(names) and not allowed:
            raise UserError(
                f"{name}: {note}; use a disjoint test split: remove them from one of the splits, or correct its "
                "folder or list (`overlap: allow` in a YAML file of the dataset permits it for a self-test)"
            )
        notes.append(note)
    return notes
