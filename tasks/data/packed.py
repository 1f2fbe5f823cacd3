"""A sequence of many plain values in one block of memory."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray


class Packed(Sequence[Any]):
    """Values stored as JSON, each decoded on access.

    Forked processes share it, as it holds no Python objects.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        texts = [json.dumps(value, separators=(",", ":")).encode() for value in values]
        self._text = np.frombuffer(b"".join(texts), dtype=np.uint8)
        self._ends = np.cumsum([len(text) for text in texts], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        start = self._ends[number - 1] if number else 0
        return json.loads(self._text[start : self._ends[number]].tobytes())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the encoded values, uint8 [N], and where each of them ends, int64 [M]."""
        return {"text": self._text, "ends": self._ends}

    @classmethod
    def from_arrays(cls, text: NDArray[Any], ends: NDArray[Any]) -> Self:
        """Return what `arrays` was taken from; the memory is shared."""
        packed = cls([])
        packed._text, packed._ends = text, ends
        return packed
