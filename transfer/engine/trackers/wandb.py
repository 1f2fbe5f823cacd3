"""Weights & Biases: offline runs in OUT/wandb, for `wandb sync`. $WANDB_MODE and $WANDB_PROJECT are obeyed."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import wandb

from transfer.engine.trackers import Ending, TrackedRun, Tracker, project


class WeightsAndBiases(Tracker):
    """Writes an offline run under the run's id, so that the parts of a resumed run are one run after their upload."""

    def __init__(self, run: TrackedRun):
        # a run object of its own: a notebook's current run stays as it is
        self.run = wandb.init(
            project=project("WANDB_PROJECT"),
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
        self.run.log({"outcome": outcome, **{f"score/{name}": value for name, value in scores.items()}})
        copy = shutil.copy(record, self.run.dir)  # not a link: the folder can be moved and synced elsewhere
        self.run.save(str(copy), base_path=self.run.dir, policy="now")

    def close(self, ending: Ending) -> None:
        """End the run, as failed unless it finished."""
        self.run.finish(exit_code=int(ending != "finished"))


TRACKER = WeightsAndBiases
