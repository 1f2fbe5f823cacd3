"""What the running cells of a sweep do, a line each: drawn anew every second on a terminal, once a minute elsewhere."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from backbones.errors import tell, visible
from transfer.records import command_result
from transfer.records.progress import duration_text, training_progress

MOST = 20
"""Number of cells that are shown one by one."""
SECONDS_ON_TERMINAL, SECONDS_ELSEWHERE = 1.0, 60.0


@dataclass(frozen=True)
class RunningCell:
    """A cell whose process runs.

    Attributes:
        name: of the cell.
        result_file: of its command, beside which that names the run it has begun.
        seconds: since it was started.
    """

    name: str
    result_file: Path
    seconds: float


class ProgressLines:
    """Writes lines of text, and below them on a terminal one line per running cell.

    Args:
        runs: folder of the runs.
        stream: where to write; by default stderr.
    """

    def __init__(self, runs: Path, stream: TextIO | None = None) -> None:
        self._runs, self._stream = runs, stream or sys.stderr
        self._drawn, self._last = 0, time.monotonic()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._clear()
        tell(visible(text), file=self._stream, flush=True)

    def show(self, cells: Sequence[RunningCell]) -> None:
        """Show the running cells, if it is time."""
        on_terminal = self._stream.isatty()
        pause = SECONDS_ON_TERMINAL if on_terminal else SECONDS_ELSEWHERE
        if time.monotonic() - self._last < pause:
            return
        self._last = time.monotonic()
        self._clear()
        lines = [progress_line(cell, self._runs) for cell in cells[:MOST]]
        lines += [f"and {len(cells) - MOST} more"] * (len(cells) > MOST)
        width = shutil.get_terminal_size().columns - 1 if on_terminal else None
        for line in lines:
            tell(visible(f"  {line}")[:width], file=self._stream)
        self._stream.flush()
        self._drawn = len(lines) if on_terminal else 0

    def _clear(self) -> None:
        """Remove the lines of running cells from a terminal."""
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0


def progress_line(cell: RunningCell, runs: Path) -> str:
    """Return what a running cell does: epoch, loss and time left of a training, or for how long it has run."""
    run = command_result.begun(cell.result_file)
    progress = training_progress(runs / run) if run else None
    since = f"running for {duration_text(cell.seconds)}"
    if progress is None:
        return visible(f"{cell.name} {since}")
    of = f" of {progress.epochs:g}" if progress.epochs else ""
    loss = "loss not finite" if progress.loss is None else f"loss {progress.loss:.4g}"
    parts = [f"epoch {progress.epoch:.1f}{of}", loss]
    parts.append(since if progress.seconds_left is None else f"{duration_text(progress.seconds_left)} left")
    return visible(f"{cell.name} {', '.join(parts)}")
