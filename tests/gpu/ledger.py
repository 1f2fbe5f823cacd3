"""What a command does on the pretended GPU, counted by phase and by line of the product."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PRODUCT = tuple(f"{ROOT / name}/" for name in ("transfer", "backbones", "tasks"))


class Ledger:
    """Synchronisations by (phase, kind, line), launches by phase, mixes by text, training steps, and the phase now.

    Phases are "train" (a step of the training loop), "backward" (within one), "settle" (reading its numbers) and
    "else". Backward passes run in a thread of their own, so the phase is one for all threads.
    """

    def __init__(self) -> None:
        self.syncs: Counter[tuple[str, str, str]] = Counter()
        self.launches: Counter[str] = Counter()
        self.mixes: Counter[str] = Counter()
        self.kernels, self.steps, self.phase = 0, 0, "else"
        self.seconds, self.computing = 0.0, False

    @contextmanager
    def device(self) -> Iterator[None]:
        """Count the seconds within as those of the device."""
        outermost, self.computing, begin = not self.computing, True, time.process_time()
        try:
            yield
        finally:
            if outermost:
                self.computing = False
                self.seconds += time.process_time() - begin

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Count under another phase."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def sync(self, kind: str) -> None:
        """Count a synchronisation at the line that is being executed."""
        self.syncs[self.phase, kind, line()] += 1

    def lines(self) -> list[tuple[str, str, str, int]]:
        """Return the synchronisations by phase, the most frequent first: phase, kind, line, number."""
        return sorted(((*key, number) for key, number in self.syncs.items()), key=lambda row: (row[0], -row[3]))

    def table(self) -> str:
        """Return everything as text."""
        rows = [f"{number:6} {phase:8} {kind:22} {line}" for phase, kind, line, number in self.lines()]
        hidden = ("syncs", "phase", "computing")
        others = [f"{name}: {value}" for name, value in vars(self).items() if name not in hidden]
        return "\n".join(["synchronisations: number, phase, kind, line", *rows, *others])


def line() -> str:
    """Return the innermost line of the product on the stack, and the library's line that it called, torch's apart."""
    frame: Any = sys._getframe(1)
    library = ""
    while frame is not None:
        path, number = frame.f_code.co_filename, frame.f_lineno
        if path.startswith(PRODUCT):
            return f"{path.removeprefix(f'{ROOT}/')}:{number}:{frame.f_code.co_name}{library}"
        if "/site-packages/" in path and "/torch/" not in path:
            library = library or f" < {path.rpartition('/site-packages/')[2]}:{number}"
        frame = frame.f_back
    return f"outside the product{library}"


LEDGER = Ledger()
