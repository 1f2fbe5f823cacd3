"""Lines about the jobs of a sweep: how each ended, and once a minute what the running ones do."""

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transfer.core.errors import print_safe
from transfer.core.settings import read_yaml
from transfer.engine.checkpoint import HISTORY
from transfer.engine.cost import duration
from transfer.experiments.grid import SweepJob, result_file
from transfer.records import command_result
from transfer.records.store import OPTIONS

MOST = 20
"""Number of jobs that are shown one by one."""
SECONDS = 60.0
TAIL = 2**16
"""Bytes at the end of a history in which its last step is looked for."""


class ProgressLines:
    """Writes lines of text, and once a minute one line per running job, to stderr.

    Args:
        out: folder of the sweep.
    """

    def __init__(self, out: Path) -> None:
        self._out, self._last = out, time.monotonic()

    def say(self, text: str) -> None:
        """Write a line."""
        print_safe(text, file=sys.stderr, flush=True)

    def show(self, running: Sequence[tuple[SweepJob, float]]) -> None:
        """Show the running jobs, with the time of their start, if it is time."""
        now = time.monotonic()
        if now - self._last < SECONDS:
            return
        self._last = now
        for job, started in running[:MOST]:
            self.say(f"  {job.title}: {progress_of(job.name, now - started, self._out)}")
        if len(running) > MOST:
            self.say(f"  and {len(running) - MOST} more")


def progress_of(name: str, seconds: float, out: Path) -> str:
    """Return what a running job does: epoch, loss and time left of a training run, or for how long it has run."""
    run, runs = command_result.begun(result_file(out, name)), out / "runs"
    step = _last_step(runs / run) if run else None
    if step is None:
        return f"running for {duration(seconds)}"
    loss = "loss not finite" if step["loss"] is None else f"loss {step['loss']:.4g}"
    epoch, epochs = step["epoch"], read_yaml(runs / run / OPTIONS).get("epochs") or 0
    begin, now = ((runs / run / file).stat().st_mtime for file in (OPTIONS, HISTORY))
    left = f", {duration((now - begin) * (epochs - epoch) / epoch)} left" if 0 < epoch < epochs else ""
    return f"epoch {epoch:.1f} of {epochs:g}, {loss}{left}"


def _last_step(folder: Path) -> dict[str, Any] | None:
    """Return the last complete training step in a run's history; None without any."""
    try:
        with (folder / HISTORY).open("rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL, 0))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # truncated, by the writer or at the front
            step: dict[str, Any] = json.loads(line)
            if "loss" in step:
                return step
    return None
