"""Corrupt images that a training run met and replaced, shared by the loader's processes."""

import multiprocessing
from collections.abc import Sequence

import torch

from backbones.errors import UserError


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
