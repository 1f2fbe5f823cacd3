"""Published archives of a data set, as its YAML file states them. Imports no torch.

archives:
  - {url: "https://...", sha256: ..., bytes: ..., into: folder, inside: path/of/an/archive/in/it}
"""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from backbones.errors import UsageError, did_you_mean

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


def read_archives(value: object, path: Path) -> tuple[Archive, ...]:
    """Return the archives that a data set's file lists. Raises UsageError that names the file."""
    if not isinstance(value, list):
        raise UsageError(f"{path}: `archives` is {value!r}; it must be a list of mappings")
    return tuple(_read_archive(entry, path) for entry in value)


def _read_archive(entry: object, path: Path) -> Archive:
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: `archives` has {entry!r}; each is a mapping with the keys {', '.join(KEYS)}")
    for key in entry:
        if key not in KEYS:
            raise UsageError(f"{path}: `archives` has an unknown key {key!r}{did_you_mean(key, KEYS)}")
    url, size = entry.get("url"), entry.get("bytes")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise UsageError(f"{path}: `archives`: `url` is {url!r}; it must begin with https:// or http://")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise UsageError(f"{path}: `archives`: `bytes` is {size!r}; it must be a number")
    algorithm = next((name for name in DIGITS if name in entry), "sha256")
    checksum = entry.get(algorithm)
    if not isinstance(checksum, str) or not re.fullmatch(f"[0-9a-f]{{{DIGITS[algorithm]}}}", checksum):
        raise UsageError(f"{path}: `archives`: {url} needs its {algorithm} in {DIGITS[algorithm]} hex digits")
    places = {key: entry.get(key) or "" for key in ("into", "inside")}
    for key, place in places.items():
        if not isinstance(place, str) or PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts:
            raise UsageError(f"{path}: `archives`: `{key}` is {place!r}; it must be a relative path without `..`")
    return Archive(url, algorithm, checksum, size, **places)
