"""Trackers that show a run beside others: TensorBoard, Trackio, Weights & Biases. One file for each, under its name on
the command line.

A tracker's package is imported when a run asks for it. The record in the run's folder stays the result.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transfer.core.errors import MissingInput, reason_of

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


TRACKERS = ("tensorboard", "trackio", "wandb")
"""The names of trackers, which are also those of their packages."""


def check_installed(name: str) -> None:
    """Raise MissingInput, with the command that installs it, when the package of a tracker is not there."""
    if name == "none":
        return
    package = importlib.util.find_spec(name)
    # a folder that a tracker has left in the working directory can be imported, too, but has no loader's file
    if package is None or package.origin is None:
        raise MissingInput(f"--tracker {name}: the package is not installed: pip install {name}")


@contextmanager
def tracking(name: str, run: TrackedRun | None, say: Callable[[str], None]) -> Iterator[Tracker]:
    """Open the tracker of a run for the length of a block, whose end tells it how the run ended.

    Args:
        name: one of `TRACKERS`, or none.
        run: None for the ranks that write nothing.
        say: gets one line when the tracker fails, and the run continues without it.

    Raises:
        MissingInput: the package is not installed.
    """
    if name == "none" or run is None:
        yield Tracker()
        return
    check_installed(name)
    tracker = _Guarded(name, run, say)
    ending: Ending = "failed"
    try:
        yield tracker
        ending = "finished"
    except Exception:
        raise
    except BaseException:
        ending = "stopped"
        raise
    finally:
        tracker.close(ending)


class _Guarded(Tracker):
    """Passes everything on to another tracker, until that raises."""

    def __init__(self, name: str, run: TrackedRun, say: Callable[[str], None]):
        self.name, self.say = name, say
        self.tracker = Tracker()
        self._attempt(self._open, run)

    def _open(self, run: TrackedRun) -> None:
        self.tracker = importlib.import_module(f"transfer.engine.trackers.{self.name}").TRACKER(run)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._attempt(self.tracker.log, step, values)

    def attach(self, record: Path, scores: Mapping[str, float], outcome: str) -> None:
        self._attempt(self.tracker.attach, record, scores, outcome)

    def close(self, ending: Ending) -> None:
        self._attempt(self.tracker.close, ending)

    def _attempt(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self.tracker = Tracker()
            reason = " ".join(reason_of(error).split())
            self.say(f"--tracker {self.name} failed ({reason}); the run continues without it")
