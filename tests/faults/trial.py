"""A fault and what became of it."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

HANG_SECONDS = 10


class NotHeldError(Exception):
    """A fault did harm; the text says which."""


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Raise NotHeldError when the block takes longer than `HANG_SECONDS`. It uses the alarm: main thread alone."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise NotHeldError(f"no end within {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
