"""Features on disk, so that no image goes through the same network twice: `FEATURES/<entry>/<shard>.safetensors`.

An entry belongs to one key: weights, resolved model, view of the image, precision, code and the contents of the images.
Its rows are the different images in the order of their content digests. A shard holds some of them, with a checksum; it
is written whole or not at all, so a killed extraction goes on where it was, and several processes may fill one entry.
Letters: R rows of an entry, K rows of a shard, F channels.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from backbones.errors import UserError
from backbones.runtime.files import write_atomic, write_error

FLAG = "--features"
ABOUT, LOCK, SHARDS = "entry.json", "lock", "*.safetensors"


def key_digest(key: dict[str, Any]) -> str:
    """sha256 (hex) of the canonical JSON of a key."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class DamagedShard(Exception):
    """A shard whose bytes are not those that were written."""


@dataclass(frozen=True)
class Spent:
    """What it took to compute features, by whichever process; nan where a shard does not say."""

    seconds: float = 0.0
    """Seconds of the device."""
    core_seconds: float = 0.0
    """Seconds of the cores beside it: threads and loader processes."""

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.seconds + other.seconds, self.core_seconds + other.core_seconds)

    def __mul__(self, share: float) -> "Spent":
        return Spent(self.seconds * share, self.core_seconds * share)


UNKNOWN = Spent(math.nan, math.nan)


@dataclass
class Entry:
    """An open entry. Rows are counted from 0."""

    folder: Path
    shards: dict[Path, NDArray[Any]] = field(default_factory=dict)
    """The rows [K] of every shard seen."""
    file: IO[str] | None = None
    made: set[str] = field(default_factory=set)
    """Names of the shards that this process wrote."""

    @classmethod
    def open(cls, store: Path, key: dict[str, Any], about: dict[str, Any]) -> "Entry":
        """The entry of a key, made if it is not there.

        Args:
            about: what a list of entries shows; does not belong to the key.

        Raises:
            UserError: the folder cannot be written.
        """
        folder = store / key_digest(key)[:32]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder, error, FLAG) from None
        entry = cls(folder)
        if entry.about.get("key") != key:
            text = json.dumps({"key": key, **about}, indent=1, ensure_ascii=False)
            write_atomic(folder / ABOUT, text.encode(), flag=FLAG)
        with entry.unused() as unused:
            # Shards are written under a claim; what else has a temporary name may be another process's entry.json.
            for scrap in folder.glob(f".{SHARDS}.*.tmp") if unused else ():
                scrap.unlink(missing_ok=True)  # of a process that was killed while it wrote
        return entry

    @property
    def about(self) -> dict[str, Any]:
        """What stands in entry.json; empty when it cannot be read."""
        try:
            content = json.loads((self.folder / ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) and isinstance(content.get("key"), dict) else {}

    def missing(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Those of the sorted rows that no shard holds so far. A shard that cannot be read is removed."""
        present = set(self.folder.glob(SHARDS))
        for path in self.shards.keys() - present:
            del self.shards[path]
        for path in sorted(present - self.shards.keys()):
            try:
                self.shards[path] = _rows(path)
            except DamagedShard:
                self._remove(path)
        held = np.concatenate([np.empty(0, np.int64), *self.shards.values()])
        return np.setdiff1d(rows, held)

    def claim(self, rows: NDArray[Any]) -> bool:
        """Whether this process may make a shard of these rows: no other has claimed it, nor made it meanwhile.

        The claim is a lock on one byte of the entry's lock file, which dies with the process. It ends by `release`.
        """
        if not self._locked(1, int(rows[0])):
            return False
        if self._path(rows).exists():
            self.release(rows)
            return False
        return True

    def release(self, rows: NDArray[Any]) -> None:
        """Ends a claim."""
        fcntl.lockf(self._lock(), fcntl.LOCK_UN, 1, int(rows[0]))

    @contextlib.contextmanager
    def unused(self) -> Iterator[bool]:
        """Whether no process is filling the entry; none can begin to meanwhile."""
        locked = self._locked()
        yield locked
        if locked:
            fcntl.lockf(self._lock(), fcntl.LOCK_UN)

    def _locked(self, *part: int) -> bool:
        """Locks a part of the lock file, given as (length, start), or all of it; False where another process has it."""
        try:
            fcntl.lockf(self._lock(), fcntl.LOCK_EX | fcntl.LOCK_NB, *part)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise UserError(
                f"{self.folder / LOCK}: cannot be locked ({error.strerror}): this file system keeps no locks; choose "
                f"another folder with {FLAG}"
            ) from None
        return True

    def write(self, rows: NDArray[Any], features: NDArray[Any], spent: Spent = UNKNOWN) -> None:
        """Adds a shard: rows [K], features [K, F] in float32, and what they took.

        Raises:
            UserError: the disk is full.
        """
        from safetensors.numpy import save

        rows, features = rows.astype(np.int64), np.ascontiguousarray(features, dtype=np.float32)
        about = {"sha256": _checksum(rows, features)} | {name: repr(value) for name, value in asdict(spent).items()}
        content = save({"rows": rows, "features": features}, metadata=about)
        write_atomic(self._path(rows), content, flag=FLAG)
        self.made.add(self._path(rows).name)

    def read(self, rows: NDArray[Any]) -> NDArray[Any] | None:
        """Features [len(rows), F] of rows that are all present, every byte checked.

        None when a shard turned out to be damaged: it is removed, and its rows are missing now.
        """
        paths = list(self.shards)
        shards, places = self._places(rows)
        found, damaged = np.empty((len(rows), 0), np.float32), False
        for number in np.unique(shards).tolist():
            try:
                features = checked(paths[number])[1]
            except DamagedShard:
                self._remove(paths[number])
                damaged = True
                continue
            if not found.shape[1]:
                found = np.empty((len(rows), features.shape[1]), np.float32)
            mine = np.flatnonzero(shards == number)
            found[mine] = features[places[mine]]
        return None if damaged else found

    def spent(self, rows: NDArray[Any], besides: Collection[str] = ()) -> Spent:
        """What these different rows took that are all present: of each shard as large a share as it is asked for.

        Args:
            besides: names of shards that do not count.
        """
        shards, total = self._places(rows)[0], Spent()
        for number, (path, held) in enumerate(self.shards.items()):
            asked = np.count_nonzero(shards == number)
            if asked and path.name not in besides:
                total += _spent(path) * (asked / len(held))
        return total

    def _places(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """For rows that are all present, the number of the shard that holds each, and its place in that."""
        held = list(self.shards.values())
        starts, every = np.cumsum([0, *map(len, held)]), np.concatenate(held)
        order = np.argsort(every, kind="stable")
        places = order[np.searchsorted(every, rows, sorter=order)]
        shards = np.searchsorted(starts, places, side="right") - 1
        return shards, places - starts[shards]

    def held(self) -> int:
        """How many rows the shards hold."""
        rows: list[NDArray[Any]] = [np.empty(0, np.int64)]
        for path in self.folder.glob(SHARDS):
            with contextlib.suppress(DamagedShard):
                rows.append(_rows(path))
        return len(np.unique(np.concatenate(rows)))

    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def verify(self) -> tuple[list[tuple[Path, str]], int]:
        """Reads every shard: the damaged ones with the reason, and how many are as written. Nothing is removed."""
        bad, good = [], 0
        for path in sorted(self.folder.glob(SHARDS)):
            try:
                checked(path)
                good += 1
            except DamagedShard as error:
                bad.append((path, str(error)))
        return bad, good

    def _path(self, rows: NDArray[Any]) -> Path:
        name = hashlib.sha256(rows.astype(np.int64).tobytes()).hexdigest()[:12]
        return self.folder / f"{int(rows[0]):08d}-{name}.safetensors"

    def _remove(self, path: Path) -> None:
        print(f"{path}: damaged; its features are computed again", file=sys.stderr)
        path.unlink(missing_ok=True)
        self.shards.pop(path, None)

    def _lock(self) -> IO[str]:
        # One open file for the entry: closing any would end all of this process's locks on it.
        if self.file is None:
            try:
                self.file = (self.folder / LOCK).open("a")
            except OSError as error:
                raise write_error(self.folder / LOCK, error, FLAG) from None
        return self.file

    def close(self) -> None:
        """Ends all claims."""
        if self.file is not None:
            self.file.close()
            self.file = None


def entries(store: Path) -> list[Entry]:
    """All entries of a store, by name. Raises UserError when there is no such folder."""
    if not store.is_dir():
        raise UserError(f"{FLAG} {store}: there is no such folder of features")
    folders = {path.parent for name in (ABOUT, SHARDS) for path in store.glob(f"*/{name}")}
    return [Entry(folder) for folder in sorted(folders)]


def checked(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows [K] and features [K, F] of a shard. Raises DamagedShard when they are not as written."""
    with _opened(path) as file:
        rows, features = file.get_tensor("rows"), file.get_tensor("features")
        written = (file.metadata() or {}).get("sha256")
    if written != _checksum(rows, features) or len(rows) != len(features):
        raise DamagedShard("its bytes are not those that were written")
    return rows, features


def _rows(path: Path) -> NDArray[Any]:
    with _opened(path) as file:
        rows: NDArray[Any] = file.get_tensor("rows")
    return rows


def _spent(path: Path) -> Spent:
    with _opened(path) as file:
        about = file.metadata() or {}
    return Spent(*(float(about.get(item.name, math.nan)) for item in fields(Spent)))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A shard to read from. Raises DamagedShard when it cannot be opened, or what is asked of it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            yield file
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedShard(str(error)) from None


def _checksum(rows: NDArray[Any], features: NDArray[Any]) -> str:
    digest = hashlib.sha256(f"{rows.dtype} {rows.shape} {features.dtype} {features.shape}".encode())
    digest.update(rows.tobytes())
    digest.update(features.view(np.uint8).reshape(-1).data)
    return digest.hexdigest()


def free(entry: Entry) -> bool:
    """Removes an entry; False when a process is filling it."""
    with entry.unused() as unused:
        if unused:
            shutil.rmtree(entry.folder)
    entry.close()
    return unused
