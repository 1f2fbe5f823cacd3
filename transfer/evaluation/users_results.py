"""Checks what the `run` of a user's task returns, before it is recorded: scores, and the arrays that give them."""

from typing import Any

import numpy as np

from backbones.errors import UserError
from tasks.task import Task

_ARRAYS = "`sample` [M], the names of the samples, and `cluster` [M], integers of what is resampled together"


def check_users_results(task: Task, scores: Any, outcomes: Any) -> None:
    """Check that the scores are numbers and that `rescore` computes them from the arrays.

    Args:
        task: a user's task.
        scores, outcomes: what its `run` returned, of which both may be empty.

    Raises:
        UserError: they are something else; the message says what is wanted.
    """
    if reason := _reason(task, scores, outcomes):
        raise UserError(f"{task.file}: {reason}")


def _reason(task: Task, scores: Any, outcomes: Any) -> str:
    if not isinstance(scores, dict) or not all(isinstance(score, float) for score in scores.values()):
        return f"`run` returned the scores {scores!r}; wanted: a dict of names and floats"
    if not isinstance(outcomes, dict) or not all(isinstance(array, np.ndarray) for array in outcomes.values()):
        return f"`run` returned no dict of NumPy arrays beside its scores; wanted: {_ARRAYS}"
    if not scores:
        return ""
    if task.primary not in scores or not np.isfinite([*scores.values()]).all():
        return f"`run` returned the scores {scores}; wanted: finite ones, with {task.primary}, which is `primary`"
    samples, clusters = outcomes.get("sample"), outcomes.get("cluster")
    if samples is None or clusters is None or samples.ndim != 1 or samples.shape != clusters.shape:
        return f"the arrays are {', '.join(outcomes) or 'none'}; wanted among them: {_ARRAYS}"
    rescored = task.rescore(outcomes)
    return "" if rescored == scores else f"`run` returned {scores}, and `rescore` of its arrays gives {rescored}"
