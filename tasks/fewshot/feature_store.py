"""Features on disk, so that no image goes through the same network twice: `FEATURES/<entry>/<shard>.safetensors`.

An entry belongs to one key: weights, resolved model, view of the image, precision, code and the contents of the images.
Its rows are the different images in the order of their content digests. A shard holds some of them, with a checksum; it
is written whole or not at all, so a killed extraction continues where it was. Several processes may fill one entry
without locks: at worst a shard is made twice.
Shapes: R rows of an entry, K rows of a shard, F channels.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import print_safe
from transfer.core.files import parse_json, write_atomic, write_error


class DamagedShard(Exception):
    """A shard's bytes are not those that were written."""


def encode_shard(rows: NDArray[Any], features: NDArray[Any], seconds: float) -> bytes:
    """Return the content of a shard's file: rows int64 [K], features float32 [K, F], and the seconds they took."""
    from safetensors.numpy import save

    rows, features = rows.astype(np.int64), np.ascontiguousarray(features, dtype=np.float32)
    return save(
        {"rows": rows, "features": features}, metadata={"sha256": _checksum(rows, features), "seconds": repr(seconds)}
    )


def read_shard(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows [K] and features [K, F] of a shard. Raises DamagedShard when they are not as written."""
    with _opened(path) as file:
        rows, features = file.get_tensor("rows"), file.get_tensor("features")
        written = (file.metadata() or {}).get("sha256")
    if written != _checksum(rows, features) or len(rows) != len(features):
        raise DamagedShard("its bytes are not those that were written")
    return rows, features


def shard_seconds(path: Path) -> float:
    """Return the seconds that the features of a shard took. Raises DamagedShard."""
    with _opened(path) as file:
        return float(file.metadata()["seconds"])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a shard to read from. Raises DamagedShard when the file, or an array within it, cannot be read."""
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


FLAG = "--feature-cache"
ABOUT, SHARDS = "entry.json", "*.safetensors"


def key_digest(key: dict[str, Any]) -> str:
    """Return the sha256 (hex) of the canonical JSON of a key."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass
class Entry:
    """An open entry of the store; rows are counted from 0."""

    folder: Path
    shards: dict[Path, NDArray[Any]] = field(default_factory=dict)
    """Rows [K] of every shard seen so far."""
    made: set[str] = field(default_factory=set)
    """Names of the shards written by this process."""

    @classmethod
    def open(cls, store: Path, key: dict[str, Any], about: dict[str, Any]) -> "Entry":
        """Open the entry of a key, and create it if it does not exist.

        Args:
            store: folder of all entries.
            key: values that determine the features.
            about: values shown by a list of entries, no part of the key.

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
        return entry

    @property
    def about(self) -> dict[str, Any]:
        """Return the content of entry.json; empty when it cannot be read."""
        try:
            return parse_json((self.folder / ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def missing(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the rows, sorted, that no shard holds so far. A shard that cannot be read is removed."""
        present = set(self.folder.glob(SHARDS))
        for path in self.shards.keys() - present:
            del self.shards[path]
        for path in sorted(present - self.shards.keys()):
            try:
                with _opened(path) as file:
                    self.shards[path] = file.get_tensor("rows")
            except DamagedShard:
                self._remove(path)
        held = np.concatenate([np.empty(0, np.int64), *self.shards.values()])
        return np.setdiff1d(rows, held)

    def has(self, rows: NDArray[Any]) -> bool:
        """Return whether there is a shard of these rows."""
        return self._path(rows).exists()

    def write(self, rows: NDArray[Any], features: NDArray[Any], seconds: float) -> None:
        """Add a shard: rows [K], features [K, F] in float32, and the seconds they took.

        Raises:
            UserError: the disk is full.
        """
        self.folder.mkdir(parents=True, exist_ok=True)  # the entry may have been removed meanwhile
        write_atomic(self._path(rows), encode_shard(rows, features, seconds), flag=FLAG)
        self.made.add(self._path(rows).name)

    def read(self, rows: NDArray[Any]) -> NDArray[Any] | None:
        """Return the features [len(rows), F] of rows that are all present, every byte checked.

        None when a shard is damaged: it is removed, and its rows are missing from then on.
        """
        paths = list(self.shards)
        shards, places = self._places(rows)
        values, damaged = np.empty((len(rows), 0), np.float32), False
        for number in np.unique(shards).tolist():
            try:
                features = read_shard(paths[number])[1]
            except DamagedShard:
                self._remove(paths[number])
                damaged = True
                continue
            if not values.shape[1]:
                values = np.empty((len(rows), features.shape[1]), np.float32)
            in_shard = np.flatnonzero(shards == number)
            values[in_shard] = features[places[in_shard]]
        return None if damaged else values

    def extraction_seconds(self, rows: NDArray[Any], exclude: Collection[str] = ()) -> float:
        """Return the seconds that different rows, all present, took: the share of each shard's that they make up.

        Args:
            rows: rows in any order.
            exclude: names of shards that do not count.
        """
        shards, total = self._places(rows)[0], 0.0
        for number, (path, held) in enumerate(self.shards.items()):
            count = np.count_nonzero(shards == number)
            if count and path.name not in exclude:
                total += shard_seconds(path) * (count / len(held))
        return total

    def _places(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return, for rows that are all present, the number of the shard that holds each and the place within it."""
        held = list(self.shards.values())
        starts, every = np.cumsum([0, *map(len, held)]), np.concatenate(held)
        order = np.argsort(every, kind="stable")
        places = order[np.searchsorted(every, rows, sorter=order)]
        shards = np.searchsorted(starts, places, side="right") - 1
        return shards, places - starts[shards]

    def _path(self, rows: NDArray[Any]) -> Path:
        name = hashlib.sha256(rows.astype(np.int64).tobytes()).hexdigest()[:12]
        return self.folder / f"{int(rows[0]):08d}-{name}.safetensors"

    def _remove(self, path: Path) -> None:
        print_safe(f"{path}: damaged; its features are computed again", file=sys.stderr)
        path.unlink(missing_ok=True)
        self.shards.pop(path, None)
