"""Damaged images that a training met and replaced, shared by the loader's processes."""

import multiprocessing

import torch

from backbones.errors import UserError


class DamagedImages:
    """The indices of at most `limit` damaged images; loader processes that are started later share it."""

    def __init__(self, limit: int) -> None:
        self._found = torch.full((limit,), -1, dtype=torch.int64).share_memory_()
        self._lock = multiprocessing.Lock()

    def add(self, index: int, error: UserError) -> None:
        """Note a damaged image. Raises UserError when there are more than the limit."""
        with self._lock:
            if index in self.indices():
                return
            free = (self._found < 0).nonzero()
            if not len(free):
                limit = len(self._found)
                raise UserError(f"{error}; {limit} others were replaced, which is what --skip-corrupt {limit} allows")
            self._found[free[0]] = index

    def indices(self) -> list[int]:
        """Return the indices, in the order in which they were met."""
        return [index for index in self._found.tolist() if index >= 0]
