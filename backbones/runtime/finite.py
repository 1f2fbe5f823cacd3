"""Numbers that are not finite, named with the image that they belong to."""

from collections.abc import Sequence

from torch import Tensor


class NotFinite(Exception):
    """Some numbers of some images are not finite, as the message says; a task's outcome, no failure of the command."""


def check_finite(rows: Tensor, names: Sequence[str], what: str) -> None:
    """Raise NotFinite, with the first image's name, unless all of `rows` [M, ...] are finite.

    Args:
        names: the names of the M images.
        what: a phrase for the rows, such as "features of the query split".
    """
    broken = ~rows.reshape(len(rows), -1).isfinite().all(1)
    raise_if_broken(broken, names, what)


def raise_if_broken(broken: Tensor, names: Sequence[str], what: str) -> None:
    """Raise NotFinite where any of `broken` [M] is set; see `check_finite`."""
    if broken.any():
        first, count = str(names[int(broken.int().argmax())]), int(broken.sum())
        raise NotFinite(
            f"{what}: not finite for {first}" + f" and {count - 1} more of {len(names)} images" * (count > 1)
        )
