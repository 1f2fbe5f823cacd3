"""What the running cells of a sweep do, a line each once a minute."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backbones.errors import tell
from transfer.records import command_result
from transfer.records.progress import duration_text, training_progress

MOST = 20
"""Number of cells that are shown one by one."""
SECONDS = 60.0


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
    """Writes lines of text, and once a minute one line per running cell, to stderr.

    Args:
        runs: folder of the runs.
    """

    def __init__(self, runs: Path) -> None:
        self._runs, self._last = runs, time.monotonic()

    def say(self, text: str) -> None:
        """Write a line."""
        tell(text, file=sys.stderr, flush=True)

    def show(self, cells: Sequence[RunningCell]) -> None:
        """Show the running cells, if it is time."""
        if time.monotonic() - self._last < SECONDS:
            return
        self._last = time.monotonic()
        for cell in cells[:MOST]:
            self.say(f"  {progress_line(cell, self._runs)}")
        if len(cells) > MOST:
            self.say(f"  and {len(cells) - MOST} more")


def progress_line(cell: RunningCell, runs: Path) -> str:
    """Return what a running cell does: epoch, loss and time left of a training, or for how long it has run."""
    run = command_result.begun(cell.result_file)
    progress = training_progress(runs / run) if run else None
    since = f"running for {duration_text(cell.seconds)}"
    if progress is None:
        return f"{cell.name} {since}"
    of = f" of {progress.epochs:g}" if progress.epochs else ""
    loss = "loss not finite" if progress.loss is None else f"loss {progress.loss:.4g}"
    parts = [f"epoch {progress.epoch:.1f}{of}", loss]
    parts.append(since if progress.seconds_left is None else f"{duration_text(progress.seconds_left)} left")
    return f"{cell.name} {', '.join(parts)}"
