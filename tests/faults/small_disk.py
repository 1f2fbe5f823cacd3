"""A disk of memory that only chosen processes see, and whose size and writability can be changed meanwhile.

`python small_disk.py FOLDER MIB` keeps it, and takes commands on its standard input.
"""

import ctypes
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

_NEW_MOUNTS, _PRIVATE = 0x20000, 1 << 18 | 1 << 14  # CLONE_NEWNS; MS_PRIVATE | MS_REC
_READ_ONLY, _REMOUNT = 1, 32
_LIBC = ctypes.CDLL(None, use_errno=True)


class SmallDisk:
    """The disk in `folder`, kept by a process. A context.

    Raises:
        PermissionError: this machine lets nobody mount, or not this user.
    """

    def __init__(self, folder: Path, mib: float) -> None:
        self.folder = folder
        argv = [sys.executable, __file__, str(folder), f"{mib:.3f}"]
        self._keeper = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._answer() != "ready":
            self.__exit__()
            raise PermissionError("no disk can be mounted here")

    def __enter__(self) -> "SmallDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.communicate()

    def set(self, command: str) -> None:
        """`size MIB`, or `read-only`."""
        assert self._keeper.stdin is not None
        print(command, file=self._keeper.stdin, flush=True)
        assert self._answer() == "ready"

    @property
    def enter(self) -> "partial[None]":
        """A function after which the process that calls it sees the disk."""
        return partial(_enter, self._keeper.pid)

    @property
    def seen(self) -> Path:
        """The disk's folder as processes outside see it."""
        return Path(f"/proc/{self._keeper.pid}/root") / self.folder.relative_to("/")

    def _answer(self) -> str:
        assert self._keeper.stdout is not None
        return self._keeper.stdout.readline().strip()


def _enter(keeper: int) -> None:
    descriptor = os.open(f"/proc/{keeper}/ns/mnt", os.O_RDONLY)
    if _LIBC.setns(descriptor, _NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)


def _mount(target: Path, mib: float, flags: int = 0) -> None:
    size = f"size={max(1, int(mib * 1024))}k"  # of nothing it would be as large as memory
    if _LIBC.mount(b"tmpfs", bytes(target), b"tmpfs", flags, size.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def _keep(folder: Path, mib: float) -> None:
    if _LIBC.unshare(_NEW_MOUNTS) != 0 or _LIBC.mount(b"none", b"/", None, _PRIVATE, None) != 0:
        raise PermissionError
    folder.mkdir(exist_ok=True)
    _mount(folder, mib)
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, size = line.strip().partition(" ")
        mib = float(size or mib)
        _mount(folder, mib, _REMOUNT | (_READ_ONLY if word == "read-only" else 0))
        print("ready", flush=True)


if __name__ == "__main__":
    try:
        _keep(Path(sys.argv[1]), float(sys.argv[2]))
    except OSError as refused:
        print(f"refused: {refused}", flush=True)
