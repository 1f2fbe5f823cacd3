"""Scores measured during training, from the histories of runs. Imports no torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from backbones.errors import UserError
from transfer.published.schema import Value
from transfer.records.store import HISTORY, Run, history
from transfer.statistics.contrasts import contrast
from transfer.statistics.scores import Scores

if TYPE_CHECKING:
    from transfer.statistics.intervals import Estimate


def score_at(run: Run, value: Value) -> float:
    """Return the score of a run after the epoch of a published value, a fraction.

    Raises:
        UserError: the history lacks the epoch.
    """
    lines = history(run.folder, value.metric)
    scores = {line["epoch"]: float(line[value.metric]) for line in lines if line[value.metric] is not None}
    if value.epoch not in scores:
        raise UserError(
            f"{run.folder / HISTORY}: has no {value.name}; --validate-at {value.epoch} of the training measures it"
        )
    return scores[value.epoch]


def mean_at(runs: Sequence[Run], value: Value) -> "Estimate":
    """Return the mean over seeds of the score after an epoch, with its interval.

    A history has the fraction of correct images, not the outcome of each image. All seeds are assumed to be right on
    the same images, which makes the interval too wide rather than too short.

    Raises:
        UserError: a run has no such score.
    """
    scores = np.array([score_at(run, value) for run in runs])
    images = runs[0].record.dataset["counts"]["val"]["images"]
    right = np.clip(scores[:, None] * images - np.arange(images), 0.0, 1.0)
    return contrast([Scores.of_clusters(right, np.ones(images))], [1], bounds=(0.0, 1.0))
