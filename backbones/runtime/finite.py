"""Features that no score can be made from: not finite, named with the image that they belong to, or all equal."""

from collections.abc import Sequence

import torch
from torch import Tensor

FLAT = {"fp32": 1e-6, "bf16": 1e-3, "fp16": 1e-3}
"""Share of the largest value below which a channel's variation is rounding: an image's features depend a little on the
number of images that are computed with it."""


class NotFinite(Exception):
    """Some numbers of some images are not finite, as the message says; a task's outcome, no failure of the command."""


class NotVaried(Exception):
    """The features of all images are the same, as the message says; a task's outcome, no failure of the command."""


def check_finite(rows: Tensor, names: Sequence[str], what: str) -> None:
    """Raise NotFinite, with the first image's name, unless all of `rows` [M, ...] are finite.

    Args:
        names: the names of the M images.
        what: a phrase for the rows, such as "features of the query split".
    """
    if rows.numel() and all(bound.isfinite() for bound in rows.aminmax()):  # which pass nan on, and take no memory
        return
    broken = ~rows.reshape(len(rows), -1).isfinite().all(1)
    raise_if_broken(broken, names, what)


def raise_if_broken(broken: Tensor, names: Sequence[str], what: str) -> None:
    """Raise NotFinite where any of `broken` [M] is set; see `check_finite`."""
    if broken.any():
        first, count = str(names[int(broken.int().argmax())]), int(broken.sum())
        raise NotFinite(
            f"{what}: not finite for {first}" + f" and {count - 1} more of {len(names)} images" * (count > 1)
        )


def constant_channels(features: Tensor, flat: float) -> Tensor:
    """Return [F]: whether a channel of features [M, F] varies by no more than this share of its largest value."""
    low, high = features.aminmax(dim=0)
    return (high - low) <= flat * torch.maximum(low.abs(), high.abs())


def check_varied(features: Tensor, precision: str, split: str) -> None:
    """Raise NotVaried when the features [M, F] of several images are the same up to rounding.

    Args:
        precision: that they were computed in, a key of `FLAT`.
        split: word for the images, such as "validation".
    """
    if len(features) > 1 and constant_channels(features, FLAT[precision]).all():
        raise NotVaried(f"degenerate features: they are the same for all {split} images")
