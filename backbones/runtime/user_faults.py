"""Errors that the code of a user's file raises, as errors for the user in one line. Imports no torch."""

import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from backbones.errors import UserError

MODULES = "_user_part_"
"""Beginning of the names of the modules that `backbones.user_code` imports from users' files."""


def user_fault(error: BaseException, more: str = "") -> UserError | None:
    """Return an error that names the file, the line and the reason, if code of a user's file raised this error.

    Args:
        error: any error; one that is meant for the user stays as it is, so that None is returned.
        more: where to read more, which is put behind the reason.
    """
    if isinstance(error, UserError):
        return None
    files = {
        str(module.__file__) for name, module in list(sys.modules.items()) if name.startswith(MODULES)
    }  # a thread may import while this runs
    lines = [(path, line) for path, line in _lines(error) if path in files]
    if not lines:
        return None
    path, line = lines[-1]
    kind = type(error).__name__
    reason = _reason(str(error), kind)
    reason = reason if reason.startswith(f"{kind}:") else f"{kind}: {reason}".removesuffix(": ")
    return UserError(f"{path} at line {line}: {reason}{more}")


def _reason(text: str, kind: str) -> str:
    """Return the first line of an error's text; of one that a loader process sent, with its traceback, that of the
    error at its end.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sent = [line for line in lines if line.startswith(f"{kind}:")]
    return sent[-1] if sent else next(iter(lines), "")


def _lines(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield the file and line of each frame, the innermost last, of loader processes too, which send them as text."""
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, frame.lineno or 0
    for path, line in re.findall(r'File "([^"\n]+\.py)", line (\d+)', str(error)):
        yield str(Path(path)), int(line)
