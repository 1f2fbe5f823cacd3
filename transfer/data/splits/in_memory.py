"""Splits of which several images lie in one file, or which a user's function decodes: rows of an Arrow table, pixels in
memory, and arrays.

Shapes: M images, H x W pixels, C channels.
"""

import hashlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from transfer.core.errors import UserError, first_line
from transfer.data.splits.integrity import read_once
from transfer.data.splits.manifest import CONTENT_BYTES
from transfer.data.splits.split import FileSplit, Pixels, Split, pixel_digest

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
        return self.table[int(self.rows[index])][self.column]["bytes"]

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

    def __post_init__(self) -> None:
        if self.channels == 3:
            self.pixels = Pixels(self.images.reshape(-1), np.array([self.images.shape[1:3]] * len(self)))

    def encoded(self, index: int) -> bytes:
        """Return a PNG of the image."""
        stream = io.BytesIO()
        self.decoded(index).save(stream, "PNG")
        return stream.getvalue()

    def decoded(self, index: int) -> Image.Image:
        """Return the image, without a PNG on the way."""
        return Image.fromarray(self.images[index]).convert(self.mode)

    def content_digest(self, index: int) -> str:
        """Return the digest of the pixels, which is also that of a PNG of the image."""
        return pixel_digest(self.images[index])

    def contents(self, what: str) -> NDArray[Any]:
        """Return the digests of the pixels, which are in memory."""
        digests = [hashlib.sha256(image.tobytes()).digest() for image in self.images]
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, CONTENT_BYTES)

    def _select_fields(self, keep: NDArray[Any]) -> dict[str, Any]:
        return {"images": self.images[keep], **super()._select_fields(keep)}


@dataclass(eq=False)
class ArraySplit(FileSplit):
    """Files of any number of channels, which go to the model as tensors, without PIL."""

    gives_arrays = True
    decode: Callable[[str], Any]
    """Path -> [H, W, C], uint8, or float32 in [0, 1]."""
    source: str
    """The sha256 of the function's file."""

    @classmethod
    def decoded_by(cls, split: Any, decode: Callable[[str], Any], source: str) -> Self:
        """Return the files of a split, read by a function."""
        fields = {name: getattr(split, name) for name in ("name", "labels", "names", "sizes", "folder")}
        return cls(**fields, decode=decode, source=source)

    def decoded(self, index: int) -> Any:
        """Return the array. Raises UserError that names its file."""
        path = self.path(index)
        try:
            array = np.asarray(self.decode(path))
        except Exception as error:
            raise UserError(f"{path}: `decode` of the dataset's reader: {first_line(error)}") from error
        if array.ndim != 3 or array.dtype not in (np.uint8, np.float32):
            wanted = "wanted: [H, W, C], uint8, or float32 in [0, 1]"
            raise UserError(f"{path}: `decode` gives {array.dtype} {list(array.shape)}; {wanted}")
        return array

    def read_pixels(self, index: int) -> "Tensor":
        """Return the array as [C, H, W]. Raises UserError for other channels than the backbone's."""
        from transfer.data.loading.images import to_pixels

        pixels = to_pixels(self.decoded(index))
        if (count := len(pixels)) != self.channels:
            raise UserError(
                f"{self.path(index)}: {count} channels, for a backbone of {self.channels}: set --in-chans {count}"
            )
        return pixels

    def read_channels(self, channels: int) -> None:
        """Have images read with so many channels."""
        self.channels = channels

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return those of the files, with that of the function."""
        return [f"{stamp}\0{self.source}" for stamp in super().stamps(indices)]

    def content_digest(self, index: int) -> str:
        """Return the digest of the file's bytes."""
        return hashlib.sha256(self.encoded(index)).hexdigest()

    def preload(self, limit: int | None) -> None:
        """Do nothing: arrays are read when they are wanted."""
