"""The folder for what can be made again: bundled datasets, stamps of datasets already checked, content digests.

What was read of large data is kept there as arrays, which the next process maps, and so parses nothing.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from transfer.core.errors import UserError, print_safe
from transfer.core.files import folder_replacement, write_atomic


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/vit-transfer`, or `~/.cache/vit-transfer`. It need not exist yet."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "vit-transfer"


def make_once(name: str, write: Callable[[Path], None]) -> Path:
    """Return the folder of the cache for the drawn images `name`, filled by `write` if it does not exist yet.

    It is written under another name and renamed: under its final name a folder is whole. The first writer wins. The
    final name ends in Pillow's version, as another version draws and compresses the same image to other pixels.

    Raises:
        UserError: it cannot be written.
    """
    final = cache_folder() / f"{name}-pillow{PIL.__version__}"
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(".tmp", f".{name}-", final.parent, True) as temporary:
            Path(temporary).chmod(0o755)
            write(Path(temporary))
            Path(temporary).rename(final)
    except OSError as error:
        if not final.is_dir():  # another process may have been first
            text = f"{name}: cannot be made in {final.parent}: {error}; set XDG_CACHE_HOME=FOLDER"
            raise UserError(text) from None
    return final


def recall(name: str) -> bytes | None:
    """Return the bytes that `remember` kept under this name; None if there are none."""
    try:
        return (cache_folder() / name).read_bytes()
    except OSError:
        return None


def remember(name: str, content: bytes, *, what: str) -> None:
    """Keep bytes for a later `recall`; a failure is reported on stderr, and `what` is then done again next time."""
    path = cache_folder() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except (OSError, UserError) as error:
        reason = getattr(error.__cause__ or error, "strerror", error)
        print_safe(f"{what} is not cached in {path.parent} ({reason}); set XDG_CACHE_HOME=FOLDER", file=sys.stderr)


FACTS = "facts.json"
SETTLED = 2.0
"""Seconds after which another change of a file gets another time: file systems count time in steps."""


@dataclass(frozen=True)
class Index:
    """Arrays and a few facts of one source, read-only; processes that open it share its memory."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]
    """Plain values."""


Stamp = tuple[int, int, int, int]
"""Of a file: size in bytes, times of the last change of content and of anything in ns, inode."""


def stamp_of(path: Path | str) -> Stamp:
    """Return what changes when a file is changed or replaced.

    The time of the last change of anything shows files that were overwritten by others with the same time of content,
    as archives and `cp -p` set it.

    Raises:
        UserError: it cannot be opened.
    """
    try:
        state = os.stat(path)  # noqa: PTH116 (called a million times)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened: {error.strerror}") from None
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino & (2**63 - 1)


def file_stamp(path: Path | str) -> str:
    """Return the stamp of a file as text. Raises UserError as `stamp_of`."""
    return " ".join(map(str, stamp_of(path)))


def are_settled(stamps: NDArray[Any]) -> NDArray[Any]:
    """Return whether files are old enough that any later change of them will change their stamps [..., 4]."""
    # a file that is rewritten within a step of the file system's clock keeps its times
    return np.asarray(stamps[..., 1:3].max(axis=-1) < (time.time() - SETTLED) * 1e9)


def load_index(source: Path, version: str, stamp: str) -> Index | None:
    """Return the index of a source; None if it is missing, unreadable, or of a different version or stamp.

    Args:
        source: the file or folder that it was made of.
        version: of the arrays; another one is another form.
        stamp: see `file_stamp`.
    """
    folder = _folder(source, version)
    try:
        content = json.loads((folder / FACTS).read_bytes())
        if content["stamp"] != stamp:
            print_safe(f"{source}: has changed since its index was made; reading it again", file=sys.stderr)
            return None
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in content["arrays"]}
        return Index(arrays, content["facts"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def keep_index(source: Path, version: str, stamp: str, index: Index) -> None:
    """Keep an index for a later `load_index`, in place of an older one; a failure is reported on stderr."""
    folder = _folder(source, version)
    content = {"stamp": stamp, "facts": dict(index.facts), "arrays": list(index.arrays)}
    try:
        with folder_replacement(folder) as new:
            for name, array in index.arrays.items():
                np.save(new / f"{name}.npy", array)
            (new / FACTS).write_text(json.dumps(content), encoding="utf-8")
    except (OSError, UserError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        print_safe(f"{source}: its index cannot be cached in {folder.parent} ({reason}) and is rebuilt next time; "
              "set XDG_CACHE_HOME=FOLDER", file=sys.stderr)  # fmt: skip


def _folder(source: Path, version: str) -> Path:
    name = hashlib.sha256(os.fsencode(source.resolve()) + version.encode()).hexdigest()[:32]
    return cache_folder() / "indexes" / name
