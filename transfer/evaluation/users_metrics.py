"""Custom metrics, by path: functions of the arrays that a run keeps of its samples (`outcomes.npz`).

Shapes: M samples.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transfer.core import user_code
from transfer.core.errors import UsageError, UserError
from transfer.task import Metric, Outcomes, Scores, Task

_RESERVED = r"(box|mask|(macro_)?accuracy)_.*|(best_|knn_|macro_)?top\d.*|rank\d+|mAP|mINP|sample|cluster"
"""Names of which comparisons know how they follow from other arrays."""


@dataclass(frozen=True)
class UsersMetric:
    """A custom metric.

    Attributes:
        compute: maps the arrays of a run by name to a value for each sample [M], nan where it does not count; the score
            is their mean. Or to one number, of which there are no intervals.
        metric: unit, direction and bounds of the score.
        file: its place, as `path/to/file.py:NAME`; the score has this NAME.
    """

    compute: Callable[[Mapping[str, NDArray[Any]]], Any]
    metric: Metric
    file: str = ""

    def __call__(self, per_sample: Mapping[str, NDArray[Any]]) -> Any:
        """Return what the function itself returns."""
        return self.compute(per_sample)

    @property
    def name(self) -> str:
        """The name of the score."""
        return self.file.rpartition(":")[2]

    def score(self, outcomes: Outcomes) -> tuple[float, NDArray[Any] | None]:
        """Return the score, and its values [M] in float64 if it is a mean over samples.

        Raises:
            UserError: the function returns something else, or a score out of its bounds.
        """
        # views that cannot be written, so that a metric cannot change what is recorded
        views = {name: np.broadcast_to(array, array.shape) for name, array in outcomes.items()}
        values = np.asarray(self.compute(views))
        wanted, samples = "a number, or one for each sample", outcomes["sample"].shape
        if values.dtype.kind not in "biuf" or values.shape not in ((), samples):
            got = f"type {values.dtype} and shape {values.shape}"
            raise UserError(f"{self.file} returned an array of {got}; wanted: {wanted}, shape {samples}")
        values = values.astype(np.float64)
        counted = values[~np.isnan(values)]
        score = float(counted.mean()) if counted.size else np.nan
        low, high = self.metric.bounds
        if not counted.size or not np.isfinite(counted).all():
            raise UserError(f"{self.file} gives no finite score: {score}")
        if not low <= score <= high:
            raise UserError(f"{self.file} gives {score}, which is outside [{low:g}, {high:g}]; `bounds` states others")
        return score, values if values.ndim else None


def metric(
    *,
    unit: str = "fraction",
    direction: Literal["higher", "lower"] = "higher",
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Callable[[Callable[[Mapping[str, NDArray[Any]]], Any]], UsersMetric]:
    """Return the decorator of a function that is a metric. Without it a function gives a fraction; more is better.

    Args:
        unit: the unit of the score. Tables print a fraction in percent, other units as they are.
        direction: whether higher or lower scores are better.
        bounds: the lowest and the highest value that is possible.
    """
    if direction not in ("higher", "lower"):
        raise UsageError(f"direction={direction!r}: higher or lower is better")
    return lambda function: UsersMetric(function, Metric(unit, direction, bounds))


def load_metrics(files: Sequence[str]) -> list[UsersMetric]:
    """Return the metrics that `path/to/file.py:NAME` name.

    Raises:
        UsageError: a file or a name in it is missing, is not a function, or has a name that is taken.
        UserError: a file fails while it is imported.
    """
    metrics: dict[str, UsersMetric] = {}
    for text in files:
        file = user_code.locate(text)
        function = user_code.load_object(file)
        if isinstance(function, type) or not callable(function):
            raise UsageError(f"{file}: a metric is a function of the arrays of a run, and this is {function!r}")
        metric = function if isinstance(function, UsersMetric) else UsersMetric(function, Metric())
        metric = replace(metric, file=file)
        if re.fullmatch(_RESERVED, metric.name) or metric.name in metrics:
            raise UsageError(f"{file}: the score name {metric.name} is taken; rename the metric")
        metrics[metric.name] = metric
    return list(metrics.values())


def add_metrics(metrics: Sequence[UsersMetric], scores: Scores, outcomes: Outcomes) -> tuple[Scores, Outcomes]:
    """Return the scores and arrays of a run with those of metrics; the values [M] have the name of their score.

    Raises:
        UserError: a metric has the name of a score or an array of the task, or returns no score.
    """
    all_scores, all_outcomes = dict(scores), dict(outcomes)
    for custom in metrics:
        if custom.name in scores or custom.name in outcomes:
            raise UserError(f"{custom.file}: the task has a score or an array called {custom.name}; rename the metric")
        all_scores[custom.name], values = custom.score(outcomes)
        if values is not None:
            all_outcomes[custom.name] = values
    return all_scores, all_outcomes


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
    for name, score in scores.items():
        low, high = task.metric(name).bounds
        if not low <= score <= high:
            return f"`run` returned {name} = {score}, which is outside [{low:g}, {high:g}], the bounds of its metric"
    samples, clusters = outcomes.get("sample"), outcomes.get("cluster")
    if samples is None or clusters is None or samples.ndim != 1 or samples.shape != clusters.shape:
        return f"the arrays are {', '.join(outcomes) or 'none'}; wanted among them: {_ARRAYS}"
    rescored = task.rescore(outcomes)
    return "" if rescored == scores else f"`run` returned {scores}, and `rescore` of its arrays gives {rescored}"
