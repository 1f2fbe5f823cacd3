"""The interface of a tracker. Imports no torch and no tracker's package."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PROJECT = "vit-transfer"
"""The project or experiment that runs go to, unless a tracker's own environment variable names another."""

Ending = Literal["finished", "failed", "stopped"]
"""How a run ended: with a record, with an error, or by a signal after which it can resume."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker learns of a run when it starts."""

    run_id: str
    folder: Path
    """The run's folder; trackers that keep all runs in one place keep them beside it."""
    options: Mapping[str, Any]
    """All options of the run as plain values."""
    tags: Mapping[str, str]
    """Task, dataset and backbone by name."""


class Tracker:
    """Receives what a run measures. This one keeps nothing."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep numbers by name that belong to a training step (from 1). They need not be finite."""

    def attach(self, record: Path, scores: Mapping[str, float], outcome: str) -> None:
        """Keep the result of a run: the file of its record, its scores (none if training failed) and its outcome."""

    def close(self, ending: Ending) -> None:
        """Write what is pending. Nothing else is called afterwards."""


def project(variable: str) -> str:
    """Return the name of the project, which an environment variable may set."""
    return os.environ.get(variable) or PROJECT
