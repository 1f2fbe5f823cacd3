"""What a task is. The evaluator runs any object of this shape; one module of `tasks/` gives one, named `TASK`."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from backbones.data.spec import DatasetSpec
from backbones.engine.context import Context
from backbones.spec import BackboneSpec

Scores = dict[str, float]
Outcomes = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Metric:
    """How a score is to be read."""

    unit: str = "fraction"
    direction: Literal["higher", "lower"] = "higher"
    bounds: tuple[float, float] = (0.0, 1.0)
    averaged: bool = False
    """Whether its unweighted mean over several data sets is reported."""


class Data(Protocol):
    """What every task's data set says about itself; the rest is between the task and its reader."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    @property
    def version(self) -> str | None:
        """Its release, where there are several."""

    @property
    def counts(self) -> dict[str, Any]:
        """Images, identities, classes ... by split, as read."""

    @property
    def skipped(self) -> int:
        """Images left out because they cannot be read."""

    @property
    def digest(self) -> str:
        """sha256 of what was read: sorted names and sizes."""


class Task:
    """Base of tasks.

    Attributes:
        version: goes up when scores of earlier versions are no longer comparable; part of a run's identity.
        rescores_from: the oldest version whose outcomes `rescore` reads as that version did.
        options: a dataclass; its values stand in `configs/tasks/<name>.yaml`.
        primary: the score that tables sort by.
        from_scratch: whether the weights that the backbone's configuration names are what this run is to make, so that
            it starts from random ones unless told otherwise.
        shares_tokens: whether ranks can share the tokens of an image in its training.
    """

    name: str
    version: int
    options: type[Any]
    metrics: dict[str, Metric]
    primary: str
    rescores_from: int = 1
    from_scratch: bool = False
    shares_tokens: bool = False

    def open(
        self, spec: DatasetSpec, options: Any, *, root: Path | None, subset: int | None, skip_unreadable: bool
    ) -> Any:
        """Reads the data set's lists, checks them, and returns what `run` gets as `dataset` (see `Data`)."""
        raise NotImplementedError

    def check_words(self, spec: BackboneSpec, options: Any) -> None:
        """Raises what the words of a command alone say to fail, before weights, data or libraries are looked for."""

    def build(self, spec: BackboneSpec, options: Any) -> None:
        """Builds what stands around the backbone, from random weights, where there is neither data nor a context.

        Raises what can be known to fail. Only for tasks that put the backbone within another model.
        """

    def check(self, spec: BackboneSpec, dataset: Any, options: Any, context: Context) -> None:
        """Raises what can be known to fail before anything is trained."""

    def content(self, dataset: Any, options: Any) -> dict[str, Any]:
        """What belongs to a run's identity besides names and sizes of the data, as plain values.

        An entry under an option's name stands for that option.
        """
        return {}

    def run(self, spec: BackboneSpec, dataset: Any, options: Any, context: Context) -> tuple[Scores, Outcomes]:
        """Trains and scores. Scores and outcomes are empty when the training broke down (`context.outcome` says how).

        Every rank of a job calls it; all return the same scores, the first one the outcomes.
        """
        raise NotImplementedError

    def rescore(self, outcomes: Outcomes) -> Scores:
        """The scores from what `outcomes.npz` holds, to the bit."""
        raise NotImplementedError

    def finish(self, folder: Path, dataset: Any, options: Any) -> None:
        """Makes what no score depends on from the files of a run that has scores, a new or a reused one."""

    def repeat(self) -> str:
        """The command that repeats a run, given in the folder of its options.yaml."""
        return f"python -m transfer.run {self.name} --config options.yaml"

    def metric(self, name: str) -> Metric:
        """How the score of this name is to be read."""
        return self.metrics.get(name, Metric())

    def contradictions(self, scores: Scores) -> list[str]:
        """What cannot be true of correct scores, in words."""
        found = []
        for name, score in scores.items():
            low, high = self.metric(name).bounds
            if not low <= score <= high:
                found.append(f"{name} = {score} is outside [{low:g}, {high:g}]")
        return found


def load_task(name: str) -> Task:
    """The task that module `tasks.<name>` gives."""
    task: Task = importlib.import_module(f"tasks.{name}").TASK
    return task
