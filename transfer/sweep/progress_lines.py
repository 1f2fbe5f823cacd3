"""What the running cells of a sweep do, a line each once a minute."""

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backbones.errors import print_safe
from backbones.settings import read_yaml
from transfer.records import command_result
from transfer.records.store import HISTORY, OPTIONS
from transfer.sweep.definition.grid import result_file

MOST = 20
"""Number of cells that are shown one by one."""
SECONDS = 60.0
TAIL = 2**16
"""Bytes at the end of a history in which its last step is looked for."""


class ProgressLines:
    """Writes lines of text, and once a minute one line per running cell, to stderr.

    Args:
        out: folder of the sweep.
    """

    def __init__(self, out: Path) -> None:
        self._out, self._last = out, time.monotonic()

    def say(self, text: str) -> None:
        """Write a line."""
        print_safe(text, file=sys.stderr, flush=True)

    def show(self, cells: Sequence[tuple[str, float]]) -> None:
        """Show the running cells, by name and time of their start, if it is time."""
        now = time.monotonic()
        if now - self._last < SECONDS:
            return
        self._last = now
        for name, started in cells[:MOST]:
            self.say(f"  {progress_line(name, now - started, self._out)}")
        if len(cells) > MOST:
            self.say(f"  and {len(cells) - MOST} more")


def progress_line(cell: str, seconds: float, out: Path) -> str:
    """Return what a running cell does: epoch, loss and time left of a training, or for how long it has run."""
    run, runs = command_result.begun(result_file(out, cell)), out / "runs"
    step = _last_step(runs / run) if run else None
    if step is None:
        return f"{cell} running for {_duration(seconds)}"
    loss = "loss not finite" if step["loss"] is None else f"loss {step['loss']:.4g}"
    epoch, epochs = step["epoch"], read_yaml(runs / run / OPTIONS).get("epochs") or 0
    begin, now = ((runs / run / name).stat().st_mtime for name in (OPTIONS, HISTORY))
    left = f", {_duration((now - begin) * (epochs - epoch) / epoch)} left" if 0 < epoch <= epochs else ""
    return f"{cell} epoch {epoch:.1f} of {epochs:g}, {loss}{left}"


def _last_step(folder: Path) -> dict[str, Any] | None:
    """Return the last training step in a run's history that is whole; None without any."""
    try:
        with (folder / HISTORY).open("rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL, 0))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # cut off, by the writer or at the front
            step: dict[str, Any] = json.loads(line)
            if "loss" in step:
                return step
    return None


def _duration(seconds: float) -> str:
    """Return a duration: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
