"""The folder for what can be made again: drawn data sets, stamps of data sets already checked."""

import os
from pathlib import Path

from backbones.errors import UserError


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/vit-transfer`, or `~/.cache/vit-transfer`. It need not exist yet."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(named) if named else Path.home() / ".cache") / "vit-transfer"
    except RuntimeError:
        raise UserError("no home folder to keep a cache in: set XDG_CACHE_HOME=FOLDER") from None
