"""Checksums of a run's files and of its record, which show whether they were changed. Imports no torch.

They find accidents and careless edits; whoever wants to deceive can compute new ones.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from backbones.checkpoints.exports import EXPORT
from backbones.runtime.files import file_sha256

_DIGEST_ENTRY = b',\n "digest": "'
_EVENTS = "events.out."  # of TensorBoard, which may still write to it


def with_checksum(content: dict[str, Any]) -> bytes:
    """Return a record as JSON whose last entry, `digest`, is the sha256 (hex) of all bytes before that entry.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    body = text.removesuffix("\n}").encode()
    return body + _DIGEST_ENTRY + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def is_modified(raw: bytes) -> bool:
    """Return whether a record's bytes were changed after `with_checksum` made them."""
    body = raw[: raw.rfind(_DIGEST_ENTRY)]
    return raw != body + _DIGEST_ENTRY + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def file_checksums(folder: Path, *, without: Collection[str], export: bool) -> dict[str, dict[str, Any]]:
    """Return the sha256 (hex) and size (bytes) of each file of a run by its name, sorted.

    Args:
        folder: the run's folder.
        without: names of files that are left out.
        export: whether the files in the folder `export` are included.
    """
    paths = [path for path in folder.iterdir() if path.name not in without]
    if export:
        paths += (folder / EXPORT).iterdir()
    kept = (path for path in paths if path.is_file() and not path.name.startswith((".", _EVENTS)))
    return {path.relative_to(folder).as_posix(): size_and_sha256(path) for path in sorted(kept)}


def size_and_sha256(path: Path) -> dict[str, Any]:
    """Return the `sha256` (hex) and the `size` (bytes) of a file."""
    return {"sha256": file_sha256(path), "size": path.stat().st_size}
