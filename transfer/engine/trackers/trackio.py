"""Trackio: its database on this machine, which $TRACKIO_DIR moves. $TRACKIO_PROJECT is obeyed."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import trackio

from transfer.engine.trackers import Ending, TrackedRun, Tracker, project


class Trackio(Tracker):
    """Logs under the run's id. A resumed run continues in the same row."""

    def __init__(self, run: TrackedRun):
        with contextlib.redirect_stdout(sys.stderr):  # stdout has the table alone
            self.run = trackio.init(
                project("TRACKIO_PROJECT"),
                name=run.run_id,
                group=run.tags.get("task"),
                config=dict(run.options),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers at this step."""
        self.run.log(dict(values), step=step)

    def attach(self, record: Path, scores: Mapping[str, float], outcome: str) -> None:
        """Log the scores, and the record as an artifact of the run."""
        self.run.log({"outcome": outcome, **{f"score/{name}": value for name, value in scores.items()}})
        self.run.log_artifact(str(record), name=f"{self.run.name}-record", type="record")

    def close(self, ending: Ending) -> None:
        """Write what is pending."""
        with contextlib.redirect_stdout(sys.stderr):
            _finish()


_finish: Callable[[], None] = trackio.finish  # it has no annotations
TRACKER = Trackio
