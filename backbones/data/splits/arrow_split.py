"""Splits of which several images lie in one file: rows of an Arrow table, or pixels in memory.

Shapes: M images, H x W pixels.
"""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.splits.integrity import read_once
from backbones.data.splits.manifest import CONTENT_BYTES
from backbones.data.splits.split import Split, pixel_digest

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor


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


@dataclass(eq=False)
class PixelSplit(SourceSplit):
    """Images of one size, as published without any encoding; forked workers share them."""

    images: NDArray[Any]
    """uint8 [M, H, W, 3]."""

    def encoded(self, index: int) -> bytes:
        """Return a PNG of the image."""
        stream = io.BytesIO()
        self.decoded(index).save(stream, "PNG")
        return stream.getvalue()

    def decoded(self, index: int) -> Image.Image:
        """Return the image, without a PNG on the way."""
        return Image.fromarray(self.images[index]).convert(self.mode)

    def read_pixels(self, index: int) -> "Tensor":
        """Return the image as uint8 [C, H, W]."""
        from backbones.data.loading.images import to_pixels

        return to_pixels(self.decoded(index))

    def content_digest(self, index: int) -> str:
        """Return the digest of the pixels, which is also that of a PNG of the image."""
        return pixel_digest(self.images[index])

    def contents(self, what: str) -> NDArray[Any]:
        """Return the digests of the pixels, which are in memory."""
        digests = [hashlib.sha256(image.tobytes()).digest() for image in self.images]
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, CONTENT_BYTES)

    def preload(self, limit: int | None) -> None:
        """Do nothing: the images are decoded already."""

    def _select_fields(self, keep: NDArray[Any]) -> dict[str, Any]:
        return {"images": self.images[keep], **super()._select_fields(keep)}
