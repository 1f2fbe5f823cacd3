"""Scores measured during training, from the histories of runs. Imports no torch."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backbones.errors import UserError
from backbones.runtime.files import is_finite_number, open_regular, parse_json
from transfer.published.rows import Value
from transfer.records.store import HISTORY, Run
from transfer.statistics.contrasts import contrast

if TYPE_CHECKING:
    from transfer.statistics.intervals import Estimate


def score_at(run: Run, value: Value) -> float:
    """Return the score of a run after the epoch of a published value, a fraction.

    Raises:
        UserError: the history cannot be read or lacks the epoch.
    """
    path = run.folder / HISTORY
    try:
        scores = _scores_by_epoch(path, path.stat().st_mtime_ns, value.metric)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if value.epoch not in scores:
        raise UserError(f"{path}: has no {value.name}; --validate-at {value.epoch} of the training measures it")
    return scores[value.epoch]


@lru_cache
def _scores_by_epoch(path: Path, changed: int, metric: str) -> dict[Any, float]:
    """Return the values of a metric in a history, by epoch.

    Args:
        changed: time of the file's last change; the cache returns the scores of an unchanged file.
    """
    # most lines are of single steps and without the metric: they are not parsed
    name = f'"{metric}"'.encode()
    with open_regular(path) as file:
        lines = [parse_json(line) for line in file if name in line]
    rows = [line for line in lines if isinstance(line, dict) and is_finite_number(line.get(metric))]
    return {row["epoch"]: float(row[metric]) for row in rows if is_finite_number(row.get("epoch"))}


def mean_at(runs: Sequence[Run], value: Value, draws: int) -> "Estimate":
    """Return the mean over seeds of the score after an epoch, with its interval.

    A history has the fraction of correct images, not the outcome of each image. All seeds are assumed to be right on
    the same images, which makes the interval too wide rather than too short.

    Args:
        draws: number of bootstrap resamples.

    Raises:
        UserError: a run has no such score, or no record of the number of images.
    """
    scores = np.array([score_at(run, value) for run in runs])
    counts = runs[0].record.dataset.get("counts", {}).get("val", {})
    images = counts.get("images") if isinstance(counts, dict) else counts
    if not isinstance(images, int) or images < 1:
        raise UserError(f"{runs[0].folder}: does not say how many images were scored")
    mean = float(scores.mean())
    around = np.random.default_rng(0).binomial(images, mean, draws) / images - mean
    return contrast(
        [scores],
        [scores[:, None] + around],
        [1],
        clusters=images,
        bounds=(0.0, 1.0),
        seeds=[[run.record.seed for run in runs]],
    )
