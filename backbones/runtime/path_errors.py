"""Errors of paths that no file can have, and of disks that fail, as errors in one line. Imports no torch."""

import errno

from backbones.errors import UserError

SHOWN = 60  # characters of a path
_REASONS = {
    errno.ENAMETOOLONG: "the name is longer than the file system takes",
    errno.ELOOP: "symbolic links go round in a circle",
    errno.EACCES: "this user has no permission for it; change its owner or mode (`ls -l` shows them)",
}
_LOOP = "Symlink loop from "
"""How pathlib's message begins up to Python 3.12, which raises a RuntimeError there."""
_FAILING = (errno.EIO, errno.ESTALE, errno.ENOTCONN)
_TEXTS = {
    "Could not determine home directory": "a path begins with `~` and a name that no user of this machine has; write "
    "it in full",
    "embedded null": "a path has a null character in it",
}


class NotRegularFile(OSError):
    """The file is a pipe or a device, which would be waited on or read without end."""

    def __init__(self, path: object):
        """Name the file."""
        super().__init__(errno.EINVAL, "not a regular file", str(path))


def path_error(error: BaseException) -> UserError | None:
    """Return an error that says why a path cannot be one, or that its disk fails; None for every other error."""
    if isinstance(error, NotRegularFile):
        return UserError(f"{error.filename}: not a regular file, but a pipe or a device; put the file itself there")
    if isinstance(error, OSError) and error.errno in _FAILING:
        place = f"{error.filename}: " if error.filename else ""
        return UserError(
            f"{place}the disk fails, or the connection to it ({error.strerror}); what was saved is kept: give the same "
            "command again when it works"
        )
    if isinstance(error, OSError) and error.errno in _REASONS:
        path = str(error.filename)
        return UserError(f"{_short(path) if error.errno == errno.ENAMETOOLONG else path}: {_REASONS[error.errno]}")
    if isinstance(error, RuntimeError) and str(error).startswith(_LOOP):
        path = str(error).removeprefix(_LOOP).strip("'")
        return UserError(f"{_short(path)}: {_REASONS[errno.ELOOP]}")
    if isinstance(error, RuntimeError | ValueError):
        for text, reason in _TEXTS.items():
            if str(error).startswith(text):
                return UserError(reason)
    return None


def _short(path: str) -> str:
    return path if len(path) <= SHOWN else f"{path[:SHOWN]}... ({len(path)} characters)"
