"""Image files as they were when their data set was opened: none is read that was replaced since. Letters: M files.

The digest of a data set names what a run computes from, and files are read hours after it was taken.
"""

import hashlib
import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.loading.read_image import read_image
from backbones.data.splits.contents import file_states, stamp_numbers
from backbones.errors import Replaced, UserError


@dataclass(frozen=True, eq=False)
class KnownFiles:
    """The files of a folder, by their row or their path."""

    folder: Path
    names: Sequence[str]
    """M paths below it."""
    stamps: NDArray[Any]
    """int64 [M, 4]: size, times and inode; see `contents.STAMP`."""
    contents: NDArray[Any]
    """uint8 [M, 32]: the sha256 of each file."""

    @classmethod
    def of(cls, folder: Path, names: Sequence[str], *, what: str) -> Self:
        """Return the files as they are now; each state of a file is read once. See `file_states`."""
        return cls(folder, names, *file_states(folder, names, what=what))

    def check_sizes(self, listed: Sequence[int] | NDArray[Any]) -> None:
        """Raise Replaced for a file that has other bytes, in number, than when the data set was listed."""
        for row in np.flatnonzero(self.stamps[:, 0] != np.asarray(listed, dtype=np.int64)).tolist():
            raise Replaced(self._path(row))

    def select(self, keep: NDArray[Any], names: Sequence[str]) -> Self:
        """Return the files of these rows, whose names are given."""
        return replace(self, names=names, stamps=self.stamps[keep], contents=self.contents[keep])

    def content(self, row: int) -> bytes:
        """Return the bytes of a file. Raises UserError: it cannot be read, or was replaced."""
        with self._reading(row) as file:
            if self._is_as_known(row, file):
                content = file.read()
                if self._is_as_known(row, file):
                    return content
            return self._verified(row, file)

    def image(self, row: int) -> Image.Image:
        """Return the RGB image of a file. Raises UserError: it is missing, damaged, or was replaced."""
        path = self._path(row)
        with self._reading(row) as file:
            if self._is_as_known(row, file):
                try:
                    image = read_image(file, name=path)
                except UserError:
                    if self._is_as_known(row, file):
                        raise
                else:
                    if self._is_as_known(row, file):
                        return image
            return read_image(io.BytesIO(self._verified(row, file)), name=path)

    def stamp(self, row: int) -> str:
        """Return the stamp that a file had; see `stamp_of`."""
        return " ".join(map(str, self.stamps[row].tolist()))

    def image_at(self, path: str) -> Image.Image:
        """Return the RGB image of one of the files by its path, which is made of `folder` and its name."""
        return self.image(self._rows[path])

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {self._path(row): row for row in range(len(self.names))}

    def _path(self, row: int) -> str:
        return f"{self.folder}/{self.names[row]}"

    @contextmanager
    def _reading(self, row: int) -> Iterator[BinaryIO]:
        path = self._path(row)
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 (called for every image)
                raise UserError(f"{path}: cannot be read: not a regular file")  # a pipe would be waited on for ever
            with open(path, "rb") as file:  # noqa: PTH123 (called for every image)
                yield file
        except OSError as error:  # of opening it, or of a disk that fails while it is read
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None

    def _is_as_known(self, row: int, file: BinaryIO) -> bool:
        """Return whether an open file has the stamp that it had; then what was read of it before is what it held."""
        return bool((self.stamps[row] == stamp_numbers(os.fstat(file.fileno()))).all())

    def _verified(self, row: int, file: BinaryIO) -> bytes:
        """Return the bytes of a file with another stamp, as a change of its rights gives, if they are as they were."""
        file.seek(0)
        content = file.read()
        if hashlib.sha256(content).digest() != self.contents[row].tobytes():
            raise Replaced(self._path(row))
        return content


@lru_cache
def named_files(path: Path) -> KnownFiles:
    """Return the files below a folder that an option names, or the one that it names, as they were at the first call.

    A command clears this memory when it begins (`named_files.cache_clear`), and names its runs by these contents.

    Raises:
        UserError: a file cannot be read.
    """
    folder, found = (path, sorted(path.rglob("*"))) if path.is_dir() else (path.parent, [path])
    names = [file.relative_to(folder).as_posix() for file in found if file.is_file()]
    return KnownFiles.of(folder, names, what=path.name)
