"""What shows that the files of a run are as they were written: a digest in the record, and of the record. No torch.

A digest shows that something was changed, not by whom: who wants to deceive can make new ones.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

_SEAL = b',\n "digest": "'
EXPORT = "export"
_EVENTS = "events.out."  # TensorBoard's, which may be open still


def with_checksum(content: dict[str, Any]) -> bytes:
    """The bytes of a record: JSON whose last entry, `digest`, is the sha256 (hex) of all bytes before that entry.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    body = text.removesuffix("\n}").encode()
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def is_modified(raw: bytes, seal: object, files: Collection[str]) -> bool:
    """Whether a record's bytes were changed after `sealed` made them.

    Args:
        seal: its entry `digest`; None in records of older versions, and where somebody took it away.
        files: its entry `files`, which only records with a digest have.
    """
    if seal is None:
        return bool(files)
    body = raw[: raw.rfind(_SEAL)]
    return raw != body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def listed(folder: Path, *, besides: Collection[str], export: bool) -> dict[str, dict[str, Any]]:
    """sha256 (hex) and size (bytes) of the files of a run, by name, sorted.

    Args:
        besides: names that are left out.
        export: take in the folder `export`, too.
    """
    found = [path for path in folder.iterdir() if path.name not in besides]
    if export:
        found += (folder / EXPORT).iterdir()
    kept = (path for path in found if path.is_file() and not path.name.startswith((".", _EVENTS)))
    return {path.relative_to(folder).as_posix(): described(path) for path in sorted(kept)}


def described(path: Path) -> dict[str, Any]:
    """sha256 (hex) and size (bytes) of a file."""
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": path.stat().st_size}
