"""What the files of a data set contain, as digests that are kept: each state of a file is read once. Letters: M files.

A data set whose images were replaced by others of equal names and sizes must get another identity, and a copy of it
elsewhere the same one. Hence every byte is read, once; afterwards size, times and inode of a file vouch for it.
"""

import contextlib
import fcntl
import hashlib
import io
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from backbones.data.array_index import SETTLED
from backbones.data.cache import cache_folder, recall, remember
from backbones.data.splits.packed_names import PackedNames
from backbones.errors import Replaced, UserError, tell
from backbones.runtime.threads import usable_cores

CONTENT_BYTES = hashlib.sha256().digest_size
KEPT_EVERY = 100_000
"""Files after which those that were read so far are kept: a reading that is interrupted goes on from there."""
MANY = 100_000
"""Files from which on the user is renewed that this happens once."""
STAMP = 4
"""Numbers of a stamp: size in bytes, times of the last change of content and of anything in ns, inode."""


def file_contents(folder: Path, names: Sequence[str], *, what: str) -> NDArray[Any]:
    """Return the sha256 of each file, uint8 [M, 32]; see `file_states`."""
    return file_states(folder, names, what=what)[1]


def file_states(folder: Path, names: Sequence[str], *, what: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the stamp of each file, int64 [M, STAMP], as it was before the file was read, and its sha256, uint8
    [M, 32].

    Files whose size, times and inode are those of an earlier call are not read. A process that finds another one
    reading the same folder waits for it and takes what it has read.

    Args:
        folder: that holds the files.
        names: M paths below it.
        what: what messages call them.

    Raises:
        UserError: a file cannot be read, or was replaced meanwhile.
    """
    stamps = _stamps(folder, names)
    contents, known = _Kept.load(folder).find(names, stamps)
    if known.all():
        return stamps, contents
    with _alone(folder, what):
        kept = _Kept.load(folder)
        contents, known = kept.find(names, stamps)
        missing = np.flatnonzero(~known)
        if len(missing) >= MANY:
            tell(f"{what}: reading {len(missing):,} files, once; later commands know what they contain by their sizes "
                  "and times", file=sys.stderr)  # fmt: skip
        with (
            ThreadPoolExecutor(min(16, usable_cores())) as pool,
            tqdm(None, f"reading {what}", len(missing), unit=" files", delay=2, leave=False, disable=None) as bar,
        ):
            for first in range(0, len(missing), KEPT_EVERY):
                rows = missing[first : first + KEPT_EVERY]
                for row, digest in zip(rows, pool.map(lambda row: _read(f"{folder}/{names[row]}"), rows.tolist())):
                    contents[row] = np.frombuffer(digest, dtype=np.uint8)
                    bar.update()
                _check_unchanged(folder, names, stamps, rows)
                known[rows] = True
                kept.with_files(names, stamps, contents, known).keep(folder)
    return stamps, contents


@dataclass
class _Kept:
    """What is known of the files of one folder."""

    names: PackedNames
    stamps: NDArray[Any]
    """int64 [M, STAMP]."""
    contents: NDArray[Any]
    """uint8 [M, CONTENT_BYTES]."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return what was kept; nothing if that is missing or damaged."""
        block = recall(_place(folder)) or b""
        if hashlib.sha256(block[CONTENT_BYTES:]).digest() == block[:CONTENT_BYTES]:
            with contextlib.suppress(ValueError, LookupError), np.load(io.BytesIO(block[CONTENT_BYTES:])) as arrays:
                return cls(
                    PackedNames.from_arrays(arrays["block"], arrays["ends"]), arrays["stamps"], arrays["contents"]
                )
        return cls(PackedNames([]), np.empty((0, STAMP), np.int64), np.empty((0, CONTENT_BYTES), np.uint8))

    def find(self, names: Sequence[str], stamps: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the contents of files, and whether each is known, bool [M]."""
        contents, known = np.zeros((len(names), CONTENT_BYTES), np.uint8), np.zeros(len(names), bool)
        if not len(self.names):
            return contents, known
        rows = self._rows(names)
        known[:] = (rows >= 0) & (self.stamps[rows] == stamps).all(axis=1)
        contents[known] = self.contents[rows[known]]
        return contents, known

    def _rows(self, names: Sequence[str]) -> NDArray[Any]:
        """Return where each name stands here, -1 for a new one."""
        if isinstance(names, PackedNames) and _same(names, self.names):
            return np.arange(len(names))
        places = {name: row for row, name in enumerate(self.names)}
        return np.array([places.get(name, -1) for name in names], dtype=np.int64)

    def with_files(
        self, names: Sequence[str], stamps: NDArray[Any], contents: NDArray[Any], known: NDArray[Any]
    ) -> "_Kept":
        """Return this with those of the files that are known and old enough for a later change to show in a stamp."""
        # a file that is rewritten within a step of the file system's clock keeps its times
        settled = known & (stamps[:, 1:3].max(axis=1, initial=0) < (time.time() - SETTLED) * 1e9)
        rows = np.flatnonzero(settled)
        new = [names[row] for row in rows]
        renewed = set(new)
        others = np.array([row for row, name in enumerate(self.names) if name not in renewed], dtype=np.int64)
        return _Kept(
            PackedNames([*(self.names[row] for row in others), *new]),
            np.concatenate([self.stamps[others], stamps[rows]]),
            np.concatenate([self.contents[others], contents[rows]]),
        )

    def keep(self, folder: Path) -> None:
        """Write it for later commands; a failure is reported on stderr."""
        block, ends = self.names.arrays()
        file = io.BytesIO()
        np.savez(file, block=block, ends=ends, stamps=self.stamps, contents=self.contents)
        content = file.getvalue()
        remember(_place(folder), hashlib.sha256(content).digest() + content, what="what the files contain")


def _same(one: PackedNames, other: PackedNames) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(left, right) for left, right in zip(one.arrays(), other.arrays())
    )


def _stamps(folder: Path, names: Sequence[str]) -> NDArray[Any]:
    """Return int64 [M, STAMP]. Raises UserError."""
    stamps = np.empty((len(names), STAMP), np.int64)
    for row, name in enumerate(names):
        path = f"{folder}/{name}"
        try:
            state = os.stat(path)  # noqa: PTH116 (called a million times)
        except OSError as error:
            raise UserError(f"{path}: cannot be opened: {error.strerror}") from None
        if not stat.S_ISREG(state.st_mode):  # a pipe would be waited on for ever
            raise UserError(f"{path}: not a regular file; remove it from the data set")
        stamps[row] = stamp_numbers(state)
    return stamps


def stamp_numbers(state: os.stat_result) -> tuple[int, int, int, int]:
    """Return the stamp of a file; see `STAMP`."""
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino & (2**63 - 1)


def _check_unchanged(folder: Path, names: Sequence[str], stamps: NDArray[Any], rows: NDArray[Any]) -> None:
    """Raise Replaced for a file that is another than before it was read: its stamp would stand for the other."""
    changed = (_stamps(folder, [names[row] for row in rows]) != stamps[rows]).any(axis=1)
    for row in rows[changed]:
        raise Replaced(f"{folder}/{names[row]}")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (called a million times)
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _alone(folder: Path, what: str) -> Iterator[None]:
    """Keep other processes from reading the same files at the same time, where the cache folder has locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path = cache_folder() / f"{_place(folder)}.lock"
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell(f"{what}: another process reads the files of {folder}; waiting for it", file=sys.stderr)
                fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _place(folder: Path) -> str:
    return f"contents/{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]}"
