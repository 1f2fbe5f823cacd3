"""One split of a classification set: labels, names, and how an image of it is read. Letters: M images, C classes."""

import errno
import hashlib
import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.array_index import drop_index, stamp_of
from backbones.data.loading.read_image import read_image
from backbones.data.splits.contents import CONTENT_BYTES
from backbones.data.splits.digests import image_digest
from backbones.data.splits.known_files import KnownFiles
from backbones.data.splits.packed_names import PackedNames
from backbones.data.splits.preload import Pixels
from backbones.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class Split(ABC):
    """Base of splits. Reading is a function of the index, so any worker or thread may do it."""

    name: str
    """"train" or "val"."""
    labels: NDArray[Any]
    """int64 [M], 0..C-1."""
    names: Sequence[str]
    """M names that hold on every machine: paths relative to the split's folder, or "train/000123" for rows."""
    sizes: NDArray[Any]
    """int64 [M]: bytes of each image as it is stored."""
    pixels: Pixels | None = field(default=None, init=False, repr=False)
    digests: list[bytes] | None = field(default=None, init=False, repr=False)
    """Content digests of all images, once `subsets.all_digests` has computed them."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """Return the image as it is stored. Raises UserError that names it when it cannot be read."""

    @abstractmethod
    def place(self, index: int) -> str:
        """Return where the image lies, for messages: a file, or a file and a row."""

    @abstractmethod
    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return what changes when an image may have changed: path, size and time of its file. Raises UserError."""

    def read(self, index: int) -> Image.Image:
        """Return the RGB image. Raises UserError that names it when it is missing or damaged."""
        return self.pixels[index] if self.pixels else self.decoded(index)

    def decoded(self, index: int) -> Image.Image:
        """Return the same image as `read`, always from where it is stored."""
        return read_image(io.BytesIO(self.encoded(index)), name=self.place(index))

    def read_pixels(self, index: int) -> "Tensor":
        """Return the image as uint8 [3, H, W], decoded by the fast image operations. Raises UserError as `read`."""
        from backbones.data.loading.images import read_pixels, to_pixels

        if self.pixels:
            return to_pixels(self.pixels[index])
        return read_pixels(self.encoded(index), name=self.place(index))

    def content_digest(self, index: int) -> str:
        """Return the sha256 (hex) of the image, equal for equal images however they are stored; see `image_digest`.

        Raises:
            UserError: it cannot be read, or is damaged.
        """
        return image_digest(self.encoded(index), name=self.place(index))

    def contents(self, what: str) -> NDArray[Any]:
        """Return the sha256 of each image's bytes as they are stored, uint8 [M, 32]; `what` is for messages.

        Raises:
            UserError: an image cannot be read.
        """
        digests = [hashlib.sha256(self.encoded(index)).digest() for index in range(len(self))]
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, CONTENT_BYTES)

    def select(self, keep: NDArray[Any]) -> Self:
        """Return the split with the images of these indices, in this order."""
        names = PackedNames(self.names[int(index)] for index in keep)
        changes = {"labels": self.labels[keep], "names": names, "sizes": self.sizes[keep], **self._select_fields(keep)}
        return replace(self, **changes)

    def _select_fields(self, keep: NDArray[Any]) -> dict[str, Any]:
        return {}

    def preload(self, limit: int | None) -> None:
        """Decode all images into memory, unless they take more than `limit` bytes; see `Pixels.load`."""
        if self.pixels is None and len(self):
            self.pixels = Pixels.load(self.decoded, len(self), limit, name=self.name)


@dataclass(eq=False)
class FileSplit(Split):
    """A split of image files; a name is the path below `folder`."""

    folder: Path
    indexed: bool = False
    """Whether names and sizes come from an index, so that a file may have been overwritten since."""
    known: KnownFiles | None = field(default=None, init=False, repr=False)
    """The files as they were when `contents` was asked for, which names what is read of them."""

    def path(self, index: int) -> str:
        """Return the image's file."""
        return f"{self.folder}/{self.names[index]}"

    place = path

    def decoded(self, index: int) -> Image.Image:
        """Read the file without a copy of its bytes."""
        self._check_size(index)
        if self.known is not None:
            return self.known.image(index)
        return read_image(self.path(index))

    def encoded(self, index: int) -> bytes:
        """Return the file's content."""
        self._check_size(index)
        if self.known is not None:
            return self.known.content(index)
        path = self.path(index)
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 (called for every image)
                raise OSError(errno.EINVAL, "not a regular file")  # a pipe would be waited on for ever
            return Path(path).read_bytes()
        except OSError as error:
            raise UserError(f"{self.path(index)}: cannot be read: {error.strerror}") from None

    def contents(self, what: str) -> NDArray[Any]:
        """Return the files' digests; a file that is replaced later is refused when it is read."""
        if self.indexed:
            for index in range(len(self)):
                self._check_size(index)
        self.known = KnownFiles.of(self.folder, self.names, what=what)
        return self.known.contents

    def select(self, keep: NDArray[Any]) -> Self:
        """Return the split with the images of these indices, in this order."""
        chosen = super().select(keep)
        chosen.known = None if self.known is None else self.known.select(keep, chosen.names)
        return chosen

    def _check_size(self, index: int) -> None:
        """Raise UserError when an indexed file has another size than when it was listed, and drop the index."""
        if not self.indexed:
            return
        path, expected = self.path(index), int(self.sizes[index])
        try:
            size = os.path.getsize(path)  # noqa: PTH202 (called for every image)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        if size != expected:
            drop_index(self.folder)
            raise UserError(
                f"{path}: has {size:,} bytes, and had {expected:,} when {self.folder} was listed; its index is "
                "dropped now: run the command again"
            )

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return path, size and time of each file: as it was when `contents` was asked for, else as it is."""
        if self.known is not None:
            return [f"{self.path(index)}\0{self.known.stamp(index)}" for index in indices]
        stamps = []
        for index in indices:
            path = self.path(index)
            try:
                state = os.stat(path)  # noqa: PTH116 (called 100,000 times)
            except OSError as error:
                raise UserError(f"{path}: cannot be opened: {error.strerror}") from None
            stamps.append(f"{path}\0{stamp_of(state)}")
        return stamps
