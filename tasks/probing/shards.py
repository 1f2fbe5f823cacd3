"""Shard files of the feature store: row numbers and features with a checksum, in safetensors' format.

Shapes: K rows of a shard, F channels.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def shard_rows(path: Path) -> NDArray[Any]:
    """Return the rows [K] of a shard, without its features. Raises DamagedShard."""
    with _opened(path) as file:
        rows: NDArray[Any] = file.get_tensor("rows")
    return rows


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
