"""Features on disk, so that no image goes through the same network twice: `FEATURES/<key>.safetensors`.

A key stands for weights, resolved model, view of the image, precision, code and the contents of the images. Rows of its
file are different images, numbered in the order of their content digests. A file is read and written under its lock:
whole or absent, and by one process, for which others wait.
Shapes: K rows in a file, F channels.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError
from transfer.core.files import check_writable, lock, write_atomic

FLAG = "--feature-cache"


class Stored(NamedTuple):
    """Features of some images."""

    rows: NDArray[Any]
    """Numbers [K] of the images, int64, rising."""
    features: NDArray[Any]
    """Their features [K, F], float32."""
    seconds: NDArray[Any]
    """Seconds [K] of the device that each took, float64."""

    def merged(self, other: "Stored") -> "Stored":
        """Return these and the features of other images."""
        if not len(self.rows):
            return other
        order = np.argsort(np.concatenate([self.rows, other.rows]))
        return Stored(*(np.concatenate(both)[order] for both in zip(self, other)))


EMPTY = Stored(np.empty(0, np.int64), np.empty((0, 0), np.float32), np.empty(0))


@contextmanager
def locked(store: Path, key: dict[str, Any], wait: Callable[[], None]) -> Iterator[Path]:
    """Give the file of a key to this process alone; the file may not exist yet.

    Args:
        store: folder of all files.
        key: values that determine the features.
        wait: called every second while another process has it.

    Raises:
        UserError: the folder cannot be written, or keeps no locks.
    """
    check_writable(store, FLAG)
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path = store / f"{digest[:32]}.safetensors"
    with path.with_suffix(".lock").open("wb") as file:
        while not lock(file, path, flag=FLAG):
            wait()
            time.sleep(1)
        yield path


def read(path: Path) -> Stored:
    """Return the content of a file, `EMPTY` when there is none. Raises UserError when it is not as it was written."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return EMPTY
    try:
        with safe_open(path, framework="np") as file:
            found, written = Stored(*map(file.get_tensor, Stored._fields)), file.metadata()["sha256"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error})") from None
    if written != _checksum(found):
        raise UserError(f"{path}: damaged (its bytes are not those that were written)")
    return found


def write(path: Path, content: Stored, about: dict[str, Any]) -> None:
    """Write a file; `about` says in its metadata what the features are. Raises UserError when the disk is full."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in content._asdict().items()}
    metadata = {"sha256": _checksum(content), "about": json.dumps(about, ensure_ascii=False)}
    write_atomic(path, save(arrays, metadata=metadata), flag=FLAG)


def _checksum(content: Stored) -> str:
    digest = hashlib.sha256()
    for array in content:
        digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
