"""Temporary folders and files beside what they become, and what killed processes left of them."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from glob import escape
from pathlib import Path

LEFT_SECONDS = 600
"""Since the last change of a temporary file, after which nobody writes it any more."""


@contextlib.contextmanager
def scratch_folder(beside: Path, name: str) -> Iterator[Path]:
    """Give a new folder `.NAME-*.tmp`, removed in the end. Those of processes that were killed are removed first.

    A process keeps its folder locked, where the file system keeps locks; elsewhere nothing of others is removed.
    """
    for left in beside.glob(f".{escape(name)}-*.tmp"):
        _remove_unless_locked(left)
    with contextlib.ExitStack() as held:
        while True:
            scratch = Path(tempfile.mkdtemp(dir=beside, prefix=f".{name}-", suffix=".tmp"))
            try:
                handle = os.open(scratch, os.O_RDONLY)
            except FileNotFoundError:  # another process took it for left
                continue
            held.callback(os.close, handle)
            held.callback(shutil.rmtree, scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            if scratch.exists():  # nobody took it for left before it was locked
                break
        yield scratch


def remove_left(path: Path) -> None:
    """Remove the temporary neighbours that processes which were killed have left of a file."""
    for left in path.parent.glob(f".{escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_SECONDS:
                left.unlink()


def _remove_unless_locked(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)
