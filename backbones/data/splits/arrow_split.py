"""A split whose images are rows of an Arrow table. Letters: M images."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from backbones.data.cache import recall, remember
from backbones.data.splits.manifest import CONTENT_BYTES
from backbones.data.splits.split import Split

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Source:
    """The origin of rows, for messages: files with their numbers of rows, or one name for all."""

    files: tuple[str, ...]
    rows: tuple[int, ...]
    stamp: str

    def place(self, row: int) -> str:
        """Return "FILE, row N" with N counted from 0 in that file."""
        for file, rows in zip(self.files, self.rows, strict=True):
            if row < rows:
                return f"{file}, row {row}"
            row -= rows
        raise IndexError(row)


@dataclass(eq=False)
class RowSplit(Split):
    """A split whose images are rows of an Arrow table."""

    table: "Dataset"
    column: str
    rows: NDArray[Any]
    """int64 [M]: the row of each image."""
    source: Source

    def encoded(self, index: int) -> bytes:
        """Return the row's bytes."""
        content: bytes = self.table[int(self.rows[index])][self.column]["bytes"]
        return content

    def place(self, index: int) -> str:
        """Return file and row."""
        return self.source.place(int(self.rows[index]))

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return the files' stamp and the row."""
        return [f"{self.source.stamp}\0{self.rows[index]}" for index in indices]

    def contents(self, what: str) -> NDArray[Any]:
        """Return the digests of the rows' bytes, kept under the stamps: each state of the files is read once."""
        key = hashlib.sha256("\n".join(self.stamps(range(len(self)))).encode()).hexdigest()
        block = recall(f"contents/rows-{key}")
        if block is None or len(block) != len(self) * CONTENT_BYTES:
            rows = tqdm(range(len(self)), f"reading {what}", unit=" rows", delay=2, leave=False, disable=None)
            block = b"".join(hashlib.sha256(self.encoded(index)).digest() for index in rows)
            remember(f"contents/rows-{key}", block, what="what the rows contain")
        return np.frombuffer(block, dtype=np.uint8).reshape(-1, CONTENT_BYTES)

    def file_names(self) -> list[str | None]:
        """Return the `path` that each row keeps beside its image."""
        import pyarrow.compute as pc

        paths = pc.struct_field(self.table.data.column(self.column), "path").to_pylist()
        return [paths[row] for row in self.rows.tolist()]

    def _select_fields(self, keep: NDArray[Any]) -> dict[str, Any]:
        return {"rows": self.rows[keep]}
