"""Splits of which several images lie in one file, as in the rows of an Arrow table. Shapes: M images."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backbones.data.splits.integrity import read_once
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
class SourceSplit(Split):
    """A split of which several images lie in one file."""

    rows: NDArray[Any]
    """int64 [M]: the place of each image in the files of `source`."""
    source: Source

    def place(self, index: int) -> str:
        """Return file and row."""
        return self.source.place(int(self.rows[index]))

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return the files' stamp and the row."""
        return [f"{self.source.stamp}\0{self.rows[index]}" for index in indices]

    def _select_fields(self, keep: NDArray[Any]) -> dict[str, Any]:
        return {"rows": self.rows[keep]}


@dataclass(eq=False)
class RowSplit(SourceSplit):
    """A split whose images are rows of an Arrow table."""

    table: "Dataset"
    column: str

    def encoded(self, index: int) -> bytes:
        """Return the row's bytes."""
        content: bytes = self.table[int(self.rows[index])][self.column]["bytes"]
        return content

    def contents(self, what: str) -> NDArray[Any]:
        """Return the digests of the rows' bytes, kept under the stamps: each state of the files is read once."""
        listing = ["contents", *self.stamps(range(len(self)))]
        digests = read_once(lambda index: hashlib.sha256(self.encoded(index)).hexdigest(), listing, f"reading {what}")
        return np.frombuffer(bytes.fromhex("".join(digests)), dtype=np.uint8).reshape(-1, CONTENT_BYTES)

    def file_names(self) -> list[str | None]:
        """Return the `path` that each row keeps beside its image."""
        import pyarrow.compute as pc

        paths = pc.struct_field(self.table.data.column(self.column), "path").to_pylist()
        return [paths[row] for row in self.rows.tolist()]
