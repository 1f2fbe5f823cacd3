"""The folder for what can be made again: drawn data sets, stamps of data sets already checked."""

import os
import tempfile
from pathlib import Path

from backbones.errors import UserError


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/vit-transfer`, or `~/.cache/vit-transfer`. It need not exist yet."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(named) if named else Path.home() / ".cache") / "vit-transfer"
    except RuntimeError:
        raise UserError("no home folder to keep a cache in: set XDG_CACHE_HOME=FOLDER") from None


def write_atomically(path: Path, text: str) -> None:
    """Writes `path` so that a reader sees the whole text or nothing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
