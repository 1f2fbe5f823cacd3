"""Scores that were measured while a model trained, from the history of its run. Imports no torch."""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backbones.errors import UserError
from transfer.published.rows import Value
from transfer.records.store import HISTORY, Run
from transfer.statistics.contrasts import contrast

if TYPE_CHECKING:
    from transfer.statistics.intervals import Estimate


def score_at(run: Run, value: Value) -> float:
    """The score that a run had after the epoch of a published value, a fraction.

    Raises:
        UserError: its history cannot be read or has no such line.
    """
    path = run.folder / HISTORY
    try:
        found = _measured(path, path.stat().st_mtime_ns, value.metric)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if value.epoch not in found:
        raise UserError(f"{path}: has no {value.name}; --validate-at {value.epoch} of the training measures it")
    return found[value.epoch]


@lru_cache
def _measured(path: Path, changed: int, metric: str) -> dict[Any, float]:
    """The score by epoch. Most lines are those of steps, which do not name it.

    Args:
        changed: when the file was, so that it is read once for all values of a table.
    """
    name = f'"{metric}"'.encode()
    with path.open("rb") as file:
        lines = [json.loads(line) for line in file if name in line]
    return {line["epoch"]: float(line[metric]) for line in lines if line.get(metric) is not None and "epoch" in line}


def mean_at(runs: Sequence[Run], value: Value, draws: int) -> "Estimate":
    """The mean over seeds of the score after an epoch, with its interval.

    A history has no outcome of each image, only how many were right; which ones is taken to be the same for all seeds,
    which makes the interval too wide rather than too short.

    Raises:
        UserError: a run has no such score, or does not say how many images were scored.
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
