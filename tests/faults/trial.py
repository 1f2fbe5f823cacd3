"""A fault and what became of it."""

import contextlib
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

HANG_SECONDS = 10


class NotHeldError(Exception):
    """A fault did harm; the text says which."""


class NotReachedError(Exception):
    """The run came to its end without the fault, so that nothing was tried; the text says which fault."""


class Kind(Protocol):
    """A kind of faults. It is made with an empty folder, in which it prepares once what its trials need."""

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Bring about one fault in an empty folder, and return its name and how it was held, as `weights: refused`.

        Raises:
            NotHeldError: it did harm.
            NotReachedError: it did not come about.
        """
        ...


@dataclass
class Tally:
    """Trials of one kind: how many had which end, those that did harm, and how many met no fault."""

    held: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    not_reached: int = 0

    @property
    def tried(self) -> int:
        """The number of faults that came about."""
        return sum(self.held.values()) + len(self.failed)


@contextlib.contextmanager
def no_hang(seconds: int = HANG_SECONDS) -> Iterator[None]:
    """Raise NotHeldError when the block takes longer. Main thread alone: it uses the alarm signal."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise NotHeldError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
