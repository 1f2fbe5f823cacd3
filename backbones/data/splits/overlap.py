"""Test images among the training images, by their bytes and under any name. Shapes: M images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.errors import UserError, shortened

LIMIT = 0.01
"""Share of the test images from which on an overlap is an error; some published sets have a few copies."""

Images = tuple[Sequence[str], NDArray[Any]]
"""Names of images, and the sha256 of the bytes of each, uint8 [M, 32]."""


def shared_images(first: Images, second: Images) -> list[tuple[int, int]]:
    """Return the indices (in the first, in the second) of each image of the second that has a copy in the first."""
    digests, others = (np.ascontiguousarray(contents).view("S32").ravel() for _, contents in (first, second))
    places = {digests[place]: place for place in np.flatnonzero(np.isin(digests, others)).tolist()}
    return [(places[others[row]], row) for row in np.flatnonzero(np.isin(others, digests)).tolist()]


def overlap_notes(
    name: str, images: Mapping[str, Images], *, trained: str = "", allowed: bool = False
) -> tuple[str, ...]:
    """Return a line for each test split that shares images with the training split.

    Args:
        name: the dataset.
        images: by split; all but "train" are scored.
        trained: the name of the training set, if it is another one.
        allowed: never raise.

    Raises:
        UserError: they are at least `LIMIT` of a split.
    """
    notes = []
    for split, (names, contents) in images.items():
        pairs = shared_images(images["train"], (names, contents)) if "train" in images and split != "train" else []
        if not pairs:
            continue
        examples = shortened([f"{names[row]} = {images['train'][0][place]}" for place, row in pairs], 3)
        of_set = f" of {trained}" if trained else ""
        note = f"{len(pairs)} of {len(names)} {split} images are also training images{of_set}: {examples}"
        if len(pairs) >= LIMIT * len(names) and not allowed:
            raise UserError(
                f"{name}: {note}; use a disjoint test split: remove them from one of the splits, or correct its "
                "folder or list (`overlap: allow` in a YAML file of the dataset permits it for a self-test)"
            )
        notes.append(note)
    return tuple(notes)
