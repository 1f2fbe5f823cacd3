"""A split of files that a user's function decodes to arrays. Shapes: H x W pixels, C channels."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from backbones.data.splits.split import FileSplit
from backbones.errors import UserError, first_line

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class ArraySplit(FileSplit):
    """Files of any number of channels, which go to the model as tensors, without PIL."""

    gives_arrays = True
    decode: Callable[[str], Any]
    """Path -> [H, W, C], uint8, or float32 in [0, 1]."""
    source: str
    """The sha256 of the function's file."""

    @classmethod
    def of(cls, split: Any, decode: Callable[[str], Any], source: str) -> Self:
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
        from backbones.data.loading.images import to_pixels

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
