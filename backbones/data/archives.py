"""Published archives of a dataset, as its YAML file states them. Imports no torch.

archives:
  - {url: "https://...", sha256: ..., bytes: ..., into: folder, inside: path/of/an/archive/in/it}
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbones.errors import UsageError

DIGITS = {"sha256": 64, "md5": 32}
KEYS = ("url", "bytes", "into", "inside", *DIGITS)


@dataclass(frozen=True)
class Archive:
    """One file to download, and where its content goes."""

    url: str
    algorithm: str
    """sha256 or md5, of the published file."""
    checksum: str
    """The checksum in hex digits."""
    bytes: int | None = None
    into: str = ""
    """Folder, below the data folder, that gets its content."""
    inside: str = ""
    """The archive within the archive that is meant."""


def read_archives(entries: list[Any], path: Path) -> tuple[Archive, ...]:
    """Return the archives that a dataset's file lists. Raises UsageError that names the file."""
    return tuple(_read_archive(entry, path) for entry in entries)


def _read_archive(entry: Any, path: Path) -> Archive:
    keys = entry if isinstance(entry, dict) else {}
    values = {key: str(keys.get(key) or "") for key in ("url", "into", "inside", *DIGITS)}
    algorithm = next((name for name in DIGITS if name in keys), "sha256")
    fits = (
        set(keys) <= set(KEYS)
        and values["url"].startswith(("https://", "http://"))
        and re.fullmatch(f"[0-9a-f]{{{DIGITS[algorithm]}}}", values[algorithm])
        and isinstance(keys.get("bytes", 1), int)
        and not any(".." in Path(place).parts or place.startswith("/") for place in (values["into"], values["inside"]))
    )
    if not fits:
        raise UsageError(
            f"{path}: `archives` has {entry!r}; wanted: a `url` that begins with https:// or http://, its `sha256` or "
            "`md5` in hex digits, and maybe `bytes`, and `into` and `inside` as relative paths without `..`"
        )
    return Archive(values["url"], algorithm, values[algorithm], keys.get("bytes"), values["into"], values["inside"])
