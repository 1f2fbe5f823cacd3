"""The folder for what can be made again: bundled datasets, stamps of datasets already checked, content digests."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import PIL

from backbones.errors import UserError, print_safe
from backbones.runtime.files import write_atomic


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/vit-transfer`, or `~/.cache/vit-transfer`. It need not exist yet."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "vit-transfer"


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
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", suffix=".tmp", dir=final.parent))
        temporary.chmod(0o755)
        try:
            write(temporary)
            temporary.rename(final)
        except OSError:
            if not final.is_dir():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{name}: cannot be made in {final.parent}: {error}; set XDG_CACHE_HOME=FOLDER") from None
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
        print_safe(f"{what} is not cached: {error}", file=sys.stderr)
