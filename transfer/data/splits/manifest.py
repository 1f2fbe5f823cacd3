"""The files of a dataset as they were when it was opened: names, packed into one block, sizes, times and contents.
Shapes: M files.

A dataset whose images were replaced by others of equal names and sizes must get another identity, and a copy of it
elsewhere the same one. Hence every file is read, once; afterwards its size, times and inode vouch for it. When a run
ends, `Manifest.check` says whether a file has changed meanwhile.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from transfer.core.cache import Index, Stamp, are_settled, keep_index, load_index, stamp_of
from transfer.core.errors import Replaced, UserError
from transfer.core.process import usable_cores

S = TypeVar("S")
T = TypeVar("T")


def packed(items: Iterable[bytes]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the bytes of M items in one block, uint8, and where each begins and ends, int64 [M + 1]."""
    block, ends = bytearray(), array("q", [0])
    for item in items:
        block += item
        ends.append(len(block))
    return np.frombuffer(block, dtype=np.uint8), np.frombuffer(ends, dtype=np.int64)


class PackedNames(Sequence[str]):
    """M names in one block of bytes: 14 million take half a GiB, and forked workers share them.

    (A list would be copied into every worker, page by page, as reading a Python object counts its references.)
    """

    def __init__(self, block: NDArray[Any], ends: NDArray[Any]) -> None:
        """Args: block: the encoded names, uint8; ends: where each begins and ends, int64 [M + 1]; both may be mapped
        from a file.
        """
        self.block, self.ends = block, ends

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Pack names."""
        return cls(*packed(map(str.encode, names)))

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same names in the same order, packed as well."""
        return isinstance(other, PackedNames) and all(map(np.array_equal, vars(self).values(), vars(other).values()))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[str]:
        block = self.block.data
        return (str(block[start:stop], "utf-8") for start, stop in pairwise(self.ends))

    def __getitem__(self, index: Any) -> Any:
        number = range(len(self))[index]
        if isinstance(number, range):
            return [self[place] for place in number]
        return self.block[self.ends[number] : self.ends[number + 1]].tobytes().decode()


CONTENT_BYTES = hashlib.sha256().digest_size
STAMP = len(get_args(Stamp))
CONTENTS_VERSION = "contents 1"


def stacked(digests: Iterable[bytes]) -> NDArray[Any]:
    """Return M digests as uint8 [M, 32]."""
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, CONTENT_BYTES)


def in_threads(compute: Callable[[S], T], items: Sequence[S], title: str, *, unit: str = "it") -> Iterator[T]:
    """Yield what a function returns for each item, in their order, from threads; a bar shows what takes longer."""
    with ThreadPoolExecutor(min(16, usable_cores())) as pool:
        results = pool.map(compute, items)
        yield from tqdm(results, title, len(items), unit=unit, delay=2, leave=False, disable=None)


@dataclass(frozen=True, eq=False)
class Manifest:
    """The files of a folder, as they were when they were read."""

    folder: Path
    names: Sequence[str]
    """M paths below it."""
    stamps: NDArray[Any]
    """int64 [M, STAMP]."""
    contents: NDArray[Any]
    """uint8 [M, 32]: the sha256 of each file."""

    @classmethod
    def of(cls, folder: Path, names: Sequence[str], *, what: str) -> Self:
        """Return the files as they are now; those whose size, times and inode are known from before are not read.

        Args:
            folder: that holds the files.
            names: M paths below it.
            what: what messages call them.

        Raises:
            UserError: a file cannot be read.
        """
        states = (stamp_of(f"{folder}/{name}") for name in names)
        stamps = np.fromiter(states, dtype=(np.int64, STAMP), count=len(names))
        earlier = _known_files(folder)
        contents, known = _find(earlier, names, stamps)
        files = cls(folder, names, stamps, contents)
        if not known.all():
            missing = np.flatnonzero(~known)
            paths = [f"{folder}/{names[row]}" for row in missing]
            contents[missing] = stacked(in_threads(_digest, paths, f"reading {what}", unit=" files"))
            _keep(earlier, files)
        return files

    @property
    def sizes(self) -> NDArray[Any]:
        """The bytes of each file, int64 [M]."""
        return self.stamps[:, 0]

    def check(self, rows: Iterable[int] | None = None) -> None:
        """Raise Replaced for one of these files, or of all, that has changed; only those with another stamp are
        read.
        """
        for row in range(len(self.names)) if rows is None else rows:
            path = f"{self.folder}/{self.names[row]}"
            with suppress(UserError):
                if stamp_of(path) == tuple(self.stamps[row]) or _digest(path) == self.contents[row].tobytes():
                    continue
            raise Replaced(path)


@lru_cache
def named_files(path: Path) -> Manifest:
    """Return the files below a folder that an option names, or the one that it names, as they were at the first call.

    A command clears this memory when it begins (`named_files.cache_clear`), and names its runs by these contents.

    Raises:
        UserError: a file cannot be read.
    """
    folder, paths = (path, sorted(path.rglob("*"))) if path.is_dir() else (path.parent, [path])
    names = [file.relative_to(folder).as_posix() for file in paths if file.is_file()]
    return Manifest.of(folder, names, what=path.name)


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedData:
    """What every opened dataset has."""

    name: str
    version: str | None
    counts: dict[str, Any]
    """What was found, after the choice of images, by split."""
    digest: str
    """The digest of split, label, name, size and content of every image used."""
    skipped: int = 0
    """Images excluded because they cannot be decoded."""
    manifests: dict[str, Manifest] = field(default_factory=dict)
    """By split the files of images as they were when the digest was taken."""
    pictures: dict[str, Any] = field(default_factory=dict)
    """The smallest and the largest [width, height] in pixels, and the number of images in each mode of PIL, as far as
    images were looked at; see `integrity.pictures_of`."""
    notes: tuple[str, ...] = ()
    """What was chosen or skipped when it was opened, a line each: printed when a run starts, and recorded."""

    def labelled(self) -> dict[str, tuple[str, Sequence[Any], NDArray[Any]]]:
        """Return by split what is counted, the labels' names [C], and how often each label occurs [C]."""
        return {}

    def check_unchanged(self) -> None:
        """Raise Replaced for an image whose file has changed since the dataset was opened."""
        for manifest in self.manifests.values():
            manifest.check()


def _known_files(folder: Path) -> Manifest:
    """Return what is known of the files of a folder."""
    index = load_index(folder, CONTENTS_VERSION, "")
    if index is None:
        return Manifest(folder, [], np.empty((0, STAMP), np.int64), np.empty((0, CONTENT_BYTES), np.uint8))
    arrays = index.arrays
    return Manifest(folder, PackedNames(arrays["names"], arrays["ends"]), arrays["stamps"], arrays["contents"])


def _find(earlier: Manifest, names: Sequence[str], stamps: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the contents of files, and whether each is known, bool [M]."""
    contents, known = np.zeros((len(names), CONTENT_BYTES), np.uint8), np.zeros(len(names), bool)
    if len(earlier.names):
        if names == earlier.names:
            rows: NDArray[Any] = np.arange(len(names))
        else:
            places = {name: row for row, name in enumerate(earlier.names)}
            rows = np.array([places.get(name, -1) for name in names], dtype=np.int64)
        known[:] = (rows >= 0) & (earlier.stamps[rows] == stamps).all(axis=1)
        contents[known] = earlier.contents[rows[known]]
    return contents, known


def _keep(earlier: Manifest, files: Manifest) -> None:
    """Write both for later commands, of the new files those old enough for a change to show in a stamp."""
    rows = np.flatnonzero(are_settled(files.stamps))
    new = [files.names[row] for row in rows]
    if not new:
        return
    renewed = set(new)
    others = np.array([row for row, name in enumerate(earlier.names) if name not in renewed], dtype=np.int64)
    names = PackedNames.of([*(earlier.names[row] for row in others), *new])
    stamps = np.concatenate([earlier.stamps[others], files.stamps[rows]])
    contents = np.concatenate([earlier.contents[others], files.contents[rows]])
    index = Index({"names": names.block, "ends": names.ends, "stamps": stamps, "contents": contents}, {})
    keep_index(files.folder, CONTENTS_VERSION, "", index)


def _digest(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (called a million times)
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
