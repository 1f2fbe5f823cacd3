"""A sequence of many plain values in one block of memory."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class Packed(Sequence[Any]):
    """Values stored as JSON, each decoded on access.

    Processes that load images are forked, and share memory until it is written to. Python writes to every object that
    it reads, so that lists of objects would be copied page by page into each of them: gigabytes for COCO's polygons.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        texts = [json.dumps(value, separators=(",", ":")).encode() for value in values]
        self._buffer = np.frombuffer(b"".join(texts), dtype=np.uint8)
        self._ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        self._starts = self._ends - np.array([len(text) for text in texts], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> "Packed": ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        return json.loads(self._buffer[self._starts[index] : self._ends[index]].tobytes())

    def select(self, rows: NDArray[Any]) -> "Packed":
        """Return the values of these rows, int64 [M]; the memory is shared."""
        chosen = object.__new__(Packed)
        chosen._buffer, chosen._starts, chosen._ends = self._buffer, self._starts[rows], self._ends[rows]
        return chosen
