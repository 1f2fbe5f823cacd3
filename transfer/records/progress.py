"""How far a run without a record has come: its last step, its loss, and the time that is left. Imports no torch."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbones.errors import UserError
from backbones.settings import read_yaml
from transfer.records.store import HISTORY, OPTIONS

TAIL = 2**16
"""Bytes at the end of a history in which its last step is looked for."""


@dataclass(frozen=True)
class TrainingProgress:
    """The last step that a training has written.

    Attributes:
        step: number of the step.
        loss: at that step; None if it was not finite.
        epoch: fractional epoch of that step.
        epochs: of the whole training; None if its options do not say.
        seconds_left: if it goes on as since its folder was made; None if nothing can be said.
    """

    step: int
    loss: float | None
    epoch: float
    epochs: float | None = None
    seconds_left: float | None = None


def training_progress(folder: Path) -> TrainingProgress | None:
    """Return how far the training in a run's folder has come; None before its first step."""
    last = last_step(folder)
    if last is None:
        return None
    step, loss, epoch = last["step"], last["loss"], float(last["epoch"])
    try:
        epochs = float(read_yaml(folder / OPTIONS)["epochs"])
        begin, now = ((folder / name).stat().st_mtime for name in (OPTIONS, HISTORY))
    except (UserError, OSError, KeyError, TypeError, ValueError):
        return TrainingProgress(step, loss, epoch)
    left = (now - begin) * (epochs - epoch) / epoch if 0 < epoch <= epochs else None
    return TrainingProgress(step, loss, epoch, epochs, left)


def last_step(folder: Path) -> dict[str, Any] | None:
    """Return the last training step in a run's history that is whole; None without any."""
    try:
        with (folder / HISTORY).open("rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL, 0))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # cut off, by the writer or at the front
            step = json.loads(line)
            if isinstance(step, dict) and "loss" in step:
                return step
    return None


def duration_text(seconds: float) -> str:
    """Return a duration: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
