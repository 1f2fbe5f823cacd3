"""Checks what the `run` of a user's task returns, before it is recorded: scores, and the arrays that give them."""

from typing import Any

import numpy as np

from backbones.errors import UserError
from tasks.task import Scores, Task
from transfer.records.per_sample import of_odd_type
from transfer.records.record_schema import LARGEST_NUMBER

_ARRAYS = "`sample` [M], the names of the samples, and `cluster` [M], integers of what is resampled together"


def check_users_results(task: Task, scores: Any, outcomes: Any) -> None:
    """Check that the scores are numbers that a record holds and that `rescore` computes them from the arrays.

    Args:
        task: a user's task.
        scores, outcomes: what its `run` returned, of which both may be empty.

    Raises:
        UserError: they are something else; the message says what is wanted.
    """
    if not isinstance(scores, dict) or not all(isinstance(score, float) for score in scores.values()):
        raise UserError(f"{task.file}: `run` returned the scores {scores!r}; wanted: a dict of names and floats")
    broken = [name for name, score in scores.items() if not abs(score) <= LARGEST_NUMBER]
    if broken:
        raise UserError(f"{task.file}: the score {broken[0]} is {scores[broken[0]]}")
    if not isinstance(outcomes, dict) or not all(isinstance(array, np.ndarray) for array in outcomes.values()):
        raise UserError(f"{task.file}: `run` returned no dict of NumPy arrays beside its scores; wanted: {_ARRAYS}")
    if not scores:
        return
    if task.primary not in scores:
        raise UserError(f"{task.file}: there is no score {task.primary}, which is `primary`, among {', '.join(scores)}")
    missing = [name for name in ("sample", "cluster") if name not in outcomes]
    if missing or outcomes["sample"].shape != outcomes["cluster"].shape or outcomes["sample"].ndim != 1:
        raise UserError(f"{task.file}: the arrays are {', '.join(outcomes) or 'none'}; wanted among them: {_ARRAYS}")
    if odd := of_odd_type(outcomes):
        kind = outcomes[odd[0]].dtype
        raise UserError(
            f"{task.file}: the array {odd[0]} is of type {kind}; wanted: numbers of up to 64 bits, or texts"
        )
    rescored = task.rescore(outcomes)
    if rescored != scores:
        raise UserError(
            f"{task.file}: `run` returned the scores {scores}, and `rescore` of its arrays gives {rescored}"
        )


def check_metrics(scores: Scores) -> None:
    """Raise UserError for a score of a user's metric that no record holds."""
    for name, score in scores.items():
        if abs(score) > LARGEST_NUMBER:
            raise UserError(f"the score {name} is {score:g}; a record holds scores up to {LARGEST_NUMBER:g}")
