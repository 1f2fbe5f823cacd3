"""Millions of short texts, such as names, in one block of bytes. Shapes: M names."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray


class PackedNames(Sequence[str]):
    """M names in one block of bytes: 14 million take half a GiB, and forked workers share them.

    (A list would be copied into every worker, page by page, as reading a Python object counts its references.)
    """

    def __init__(self, names: Iterable[str]) -> None:
        block, ends = bytearray(), array("q", [0])
        for name in names:
            block += name.encode()
            ends.append(len(block))
        self._block, self._ends = np.frombuffer(bytes(block), dtype=np.uint8), np.frombuffer(ends, dtype=np.int64)

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the encoded names, uint8, and where each begins and ends, int64 [M + 1]."""
        return self._block, self._ends

    @classmethod
    def from_arrays(cls, block: NDArray[Any], ends: NDArray[Any]) -> Self:
        """Return what `arrays` was taken from; arrays that are mapped from a file stay mapped."""
        names = cls([])
        names._block, names._ends = block, ends
        return names

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return self._block[self._ends[number] : self._ends[number + 1]].tobytes().decode()
