"""Trackers that show a run beside others: TensorBoard, Weights & Biases. One class for each.

A tracker's package is imported when a run asks for it. The record in the run's folder stays the result.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from transfer.core.errors import MissingInput, first_line
from transfer.core.machine_errors import install_command

PROJECT = "vit-transfer"
"""The project that runs go to, unless `$WANDB_PROJECT` names another."""


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

    def close(self, finished: bool) -> None:
        """Write what is pending of a run that ended, with a record or without. Nothing else is called afterwards."""


class TensorBoard(Tracker):
    """Writes event files into the run's folder, for `tensorboard --logdir runs`.

    Events of steps that a resumed run repeats are hidden.
    """

    def __init__(self, run: TrackedRun):
        self.folder, self.step = run.folder, 0
        self.writer: Any = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each number."""
        writer, self.step = self._writer(step), step
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    def attach(self, record: Path, scores: Mapping[str, float], outcome: str) -> None:
        """Write the record as text, and each score as a scalar at the last step."""
        writer = self._writer(self.step)
        writer.add_text("outcome", outcome, self.step)
        writer.add_text("record", f"```json\n{record.read_text(encoding='utf-8')}\n```", self.step)
        self.log(self.step, _named(scores))

    def close(self, finished: bool) -> None:
        """Close the event file."""
        if self.writer is not None:
            self.writer.close()

    def _writer(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        if self.writer is None:  # only now is it known at which step a resumed run continues
            self.writer = SummaryWriter(str(self.folder), purge_step=step or None)
        return self.writer


class WeightsAndBiases(Tracker):
    """Writes offline runs into OUT/wandb, for `wandb sync`; $WANDB_MODE and $WANDB_PROJECT are obeyed.

    They are under the run's id, so that the parts of a resumed run are one run after their upload.
    """

    def __init__(self, run: TrackedRun):
        import wandb

        # a run object of its own: a notebook's current run stays as it is
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=run.run_id.replace(",", "+"),  # it takes no comma
            name=run.run_id,
            dir=str(run.folder.parent),
            mode=cast(Any, os.environ.get("WANDB_MODE") or "offline"),  # wandb checks the name
            reinit="create_new",
            resume="allow",
            config=dict(run.options),
            tags=[tag[:64] for tag in run.tags.values()],  # it takes no longer ones
            settings=wandb.Settings(silent=True, console="off", disable_code=True, save_code=False),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers at this step."""
        self.run.log(dict(values), step=step)

    def attach(self, record: Path, scores: Mapping[str, float], outcome: str) -> None:
        """Log the scores, which the summary then has, and put the record among the run's files."""
        self.run.log({"outcome": outcome, **_named(scores)})
        copy = shutil.copy(record, self.run.dir)  # not a link: the folder can be moved and synced elsewhere
        self.run.save(str(copy), base_path=self.run.dir, policy="now")

    def close(self, finished: bool) -> None:
        """End the run, as failed unless it finished."""
        self.run.finish(exit_code=int(not finished))


def _named(scores: Mapping[str, float]) -> dict[str, float]:
    return {f"score/{name}": value for name, value in scores.items()}


TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""The trackers by name, which is also that of their package."""


def check_installed(name: str) -> None:
    """Raise MissingInput, with the command that installs it, when the package of a tracker is not there."""
    if name == "none":
        return
    package = importlib.util.find_spec(name)
    # a folder that a tracker has left in the working directory can be imported, too, but has no loader's file
    if package is None or package.origin is None:
        raise MissingInput(f"--tracker {name}: the package is not installed: {install_command('track')}")


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
    tracker, finished = _Guarded(name, run, say), False
    try:
        yield tracker
        finished = True
    finally:
        tracker.close(finished)


class _Guarded(Tracker):
    """Passes everything on to another tracker, until that raises."""

    def __init__(self, name: str, run: TrackedRun, say: Callable[[str], None]):
        self.name, self.say, self.tracker = name, say, Tracker()
        self._attempt(lambda: setattr(self, "tracker", TRACKERS[name](run)))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._attempt(self.tracker.log, step, values)

    def attach(self, record: Path, scores: Mapping[str, float], outcome: str) -> None:
        self._attempt(self.tracker.attach, record, scores, outcome)

    def close(self, finished: bool) -> None:
        self._attempt(self.tracker.close, finished)

    def _attempt(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self.tracker = Tracker()
            reason = first_line(error)
            self.say(f"--tracker {self.name} failed ({reason}); the run continues without it")
