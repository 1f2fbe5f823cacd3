"""A fault and what became of it."""

import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Protocol

HANG_SECONDS = 10


class NotHeldError(Exception):
    """A fault did harm; the text says which."""


class Kind(Protocol):
    """A kind of faults. It is made with an empty folder, in which it prepares once what its trials need."""

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Bring about one fault in an empty folder, and return its name and how it was held, as `weights: refused`.

        Raises:
            NotHeldError: it did harm.
        """
        ...


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
