"""Interface of a task. The evaluator runs any such object; each task's module in `tasks/` defines one as `TASK`."""

import importlib
import math
import re
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from backbones.spec import BackboneSpec, check_size
from transfer.core import user_code
from transfer.core.errors import UsageError
from transfer.core.settings import config_names
from transfer.data.classification import ClassificationData, balanced_weights
from transfer.data.loading.options import preprocessing
from transfer.data.spec import DatasetSpec, dataset_names, resolve_dataset

if TYPE_CHECKING:
    from transfer.engine.context import Context

Array = NDArray[Any]
Scores = dict[str, float]
Outcomes = dict[str, Array]
Result = tuple[Scores, Outcomes]
Defaults = dict[str, tuple[Any, str]]
ByClass = dict[str, tuple[Array, dict[str, Array]]]
PICTURES = "pictures"  # in a run's folder
FAILED_SCORES = "failed_scores"  # in the details of a record: what a failed training scores
PRETRAIN = "pretrain-"
"""Before the name of a method in that of its task."""
STEPS = 4
"""Steps of an epoch below which the default batch size is lowered."""


@dataclass(frozen=True)
class Metric:
    """Unit, direction and bounds of a score."""

    unit: str = "fraction"
    direction: Literal["higher", "lower"] = "higher"
    bounds: tuple[float, float] = (0.0, 1.0)
    averaged: bool = False
    """Whether its unweighted mean over several datasets is reported."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a record has them; bounds of which one is infinite are None there."""
        return asdict(self) | {"bounds": self.bounds if all(map(math.isfinite, self.bounds)) else None}


class Task:
    """Base of tasks.

    Attributes:
        version: rises when scores of earlier versions are no longer comparable; part of a run's identity.
        options: a dataclass; its values are in `configs/tasks/<name>.yaml`.
        primary: the score that tables sort by.
        from_scratch: whether a run starts from random weights by default, because it makes those that the backbone's
            configuration names.
        shares_tokens: whether ranks can share the tokens of an image in its training.
        formats: of the datasets that it takes, see `transfer.data.layouts.FORMATS`; empty: any.
        module: of a task of the suite, the module with its functions `run`, `rescore`, `check` and
            `untrained_learner`, and for new images `restore`, `predict`, `features`, `draw` (see
            `transfer.predict.trained`). It imports torch, and is imported when one of them is called.
        file: a user's task as `path/to/file.py:NAME`; empty for a task of the suite.
    """

    name: str
    version: int = 1
    options: type[Any]
    metrics: dict[str, Metric]
    primary: str
    from_scratch: bool = False
    shares_tokens: bool = False
    formats: Collection[str] = ()
    module: str = ""
    file: str = ""

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return a function of `module`; None if the task has no module, or the module no such function."""
        return getattr(importlib.import_module(self.module), name, None) if self.module else None

    def call(self, name: str, *given: Any) -> Any:
        """Return what the function of `module` returns; None where there is none."""
        function = self.function(name)
        return function(*given) if function else None

    def check_kind(self, spec: DatasetSpec) -> None:
        """Raise UsageError for a dataset of a format that only other tasks take."""
        if not self.formats or spec.format in self.formats or spec.reader:
            return
        takers = [name for name in config_names("tasks") if spec.format in load_task(name).formats]
        fitting = [name for name in dataset_names() if resolve_dataset(name).format in self.formats]
        fix = f"; set --dataset to {', '.join(fitting)}, or a YAML file with `format` {', '.join(self.formats)}"
        reason = f"{spec.name}: {self.name} does not take format {spec.format}, which is for {', '.join(takers)}"
        raise UsageError(reason + fix)

    def open(
        self, spec: DatasetSpec, options: Any, *, root: Path | None, subset: int | None, drop_corrupt: bool
    ) -> Any:
        """Read and check the dataset's lists, and return the `dataset` argument of `run`.

        It has `name` (that of tables), `version` (the release; None if there is one), `counts` (of images, classes, ...
        by split, as read), `skipped` (excluded corrupt images) and `digest` (sha256 of the sorted
        names, sizes and contents of the files); the rest is between the task and its reader.
        """
        raise NotImplementedError

    def join(self, datasets: Sequence[Any]) -> Any:
        """Return a dataset that trains on those of several, for an option `joint` of the task; see `open`."""
        raise NotImplementedError

    def check_installed(self) -> None:
        """Raise UserError for packages that the task needs besides those of the suite, and that are not installed."""

    def check_words(self, spec: BackboneSpec, options: Any) -> None:
        """Raise errors that the command line alone shows, before weights, data or libraries are searched."""
        if size := self.built_size(options):
            check_size(spec, size)

    def defaults_for_backbone(self, spec: BackboneSpec, options: Any, given: Collection[str]) -> Defaults:
        """Return the values of options, by name, that fit the backbone better than the recipe's, each with the reason:
        the next size that can be cut into patches.

        They replace options that the user did not set (`given` has the names of those that are set), before the run
        key is computed, and the record notes them.
        """
        if not (size := self.built_size(options)):
            return {}
        fitting = spec.cover(size) if isinstance(size, int) else tuple(map(spec.cover, size))
        return {"size": (fitting, f"a multiple of {spec.divisor} pixels, as the patches need it")}

    def defaults_for_data(self, spec: BackboneSpec, dataset: Any, options: Any) -> Defaults:
        """Return values that fit the opened dataset better than the recipe's; see `defaults_for_backbone`."""
        return {}

    def epoch_steps(self, dataset: Any, options: Any) -> int:
        """Return the steps of an epoch, by default the whole batches of the training split; 0 where epochs differ, or
        they are not known before the training is set up.

        With repeated augmentation DeiT's sampler keeps a multiple of 256 images.
        """
        images = len(dataset.train or ()) if isinstance(dataset, ClassificationData) else 0
        images = images // 256 * 256 or images if getattr(options, "repeats", 1) > 1 else images
        return images // getattr(options, "batch_size", images + 1)

    def built_size(self, options: Any) -> int | tuple[int, int] | None:
        """Return the size in pixels at which the task builds the backbone; None is the backbone's own."""
        return getattr(options, "size", None)

    def preprocessing(self, options: Any) -> dict[str, Any]:
        """Return how evaluated images become the model's input, for records and exports; empty where that is not known.

        See `transfer.data.loading.options.preprocessing`.
        """
        return preprocessing(options) if self.built_size(options) and not self.file else {}

    def untrained_learner(self, spec: BackboneSpec, options: Any) -> Any:
        """Return what the task trains, an `nn.Module` of random weights for two classes, made without data.

        The names of its parameters are what `--trainable` chooses from. A sweep's `--dry-run` calls it, too, for errors
        that can be known before training. None: nothing trains, or only the data shows what does.
        """
        return self.call("untrained_learner", spec, options)

    def check(self, spec: BackboneSpec, dataset: Any, options: Any, context: "Context") -> None:
        """Raise errors that can be known before training."""
        self.call("check", spec, dataset, options, context)

    def content(self, dataset: Any, options: Any) -> dict[str, Any]:
        """Return plain values that belong to a run's identity besides the digest of the data.

        An entry under an option's name stands for that option.
        """
        return {}

    def run(self, spec: BackboneSpec, dataset: Any, options: Any, context: "Context") -> Result:
        """Train and score. Scores and outcomes are empty if training failed (see `context.outcome`).

        Every rank of a job calls it; all return the same scores, the first one the outcomes.

        Raises:
            NotFinite, NotVaried: the features allow no score; every rank raises it.
        """
        return self.call("run", spec, dataset, options, context)

    def execute(self, spec: BackboneSpec, dataset: Any, options: Any, context: "Context") -> Result:
        """Call `run`; that its features allow no score becomes the run's outcome, without scores.

        What a failed training scores is kept in `details`, for readers: it counts in no mean. What a task without
        epochs takes is the cost of evaluation.
        """
        from transfer.engine.extract import NotFinite, NotVaried

        start = time.monotonic()
        try:
            scores, outcomes = self.run(spec, dataset, options, context)
            if not context.outcome.training_failed:
                return scores, outcomes
            context.details[FAILED_SCORES] = scores
        except NotFinite as broken:
            context.record_unscorable("nonfinite", broken)
        except NotVaried as equal:
            context.record_unscorable("collapsed", equal)
        finally:
            context.cost.eval_seconds += 0 if hasattr(options, "epochs") else time.monotonic() - start
        return {}, {}

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Compute the scores from the arrays in `outcomes.npz`, to the bit."""
        return self.call("rescore", outcomes)

    def per_sample(self, name: str, outcomes: Outcomes) -> Array | None:
        """Return values [M] in float64 whose mean over the M samples is the score of this name; nan if a sample does
        not count. None if the outcomes do not give the score, or not as a mean.
        """
        if name in outcomes:  # a measurement of each sample has the name of its score
            return outcomes[name].astype(np.float64)
        if name.startswith("macro_"):
            plain, label = self.per_sample(name.removeprefix("macro_"), outcomes), outcomes.get("label")
            return None if plain is None or label is None else plain * balanced_weights(np.bincount(label))[label]
        accuracy = re.fullmatch(r"(best_|knn_)?top(\d+)(_k\d+)?", name)
        if accuracy is None:
            return None
        kind, k, neighbours = accuracy.groups()
        rank = ("best_" if kind == "best_" else "") + "rank" + (neighbours or "")
        return share_among(int(k), rank, outcomes) if rank in outcomes else None

    def aggregated(self, names: Sequence[str], outcomes: Outcomes) -> Scores:
        """Return those of the named scores that are no mean over samples, computed from the outcomes."""
        return {}

    def by_class(self, names: Sequence[str], outcomes: Outcomes) -> ByClass:
        """Return by each class's id whether it occurs in a sample [M], and the named scores that it has: the score and
        its values on B resamples, [1 + B].

        Those of a class without a test sample, or that the outcomes do not give by class, are left out.
        """
        return {}

    def finish(self, folder: Path, dataset: Any, options: Any) -> None:
        """Create extra files, on which no score depends, from the files of a finished run, new or reused."""

    def repeat(self) -> str:
        """Return the command that repeats a run from the folder of its options.yaml."""
        return f"python -m transfer.run {shlex.quote(self.file or self.name)} --config options.yaml"

    def metric(self, name: str) -> Metric:
        """Return the metric of the score of this name."""
        return self.metrics.get(name, Metric())

    def check_definition(self) -> None:
        """Raise UsageError unless the name and options of a user's task are such that runs of it can be recorded."""
        user_code.check_new_name(self.file, self.name, config_names("tasks"))
        if not is_dataclass(self.options) or "eval_precision" not in {item.name for item in fields(self.options)}:
            raise UsageError(
                f"{self.file}: `options` is {self.options!r}; it must be a dataclass with an option `eval_precision`, "
                "such as one derived from tasks.labelled_images.FrozenOptions"
            )


def share_among(k: int, rank: str, outcomes: Outcomes) -> Array:
    """Return in [0, 1] how far the true class of each image [M] is among the k best.

    Classes that tie with the true one have each place with equal probability.

    Args:
        rank: the name of the outcome with the places of the true classes, such as `best_rank`, beside `best_ties`.
    """
    places = outcomes.get(rank.replace("rank", "ties"), 0) + 1
    return np.clip((k - outcomes[rank]) / places, 0.0, 1.0)


def batch_for(images: int, options: Any) -> Defaults:
    """Return the largest power of 2 as batch size that leaves `STEPS` steps an epoch, if the recipe's leaves fewer;
    nothing for options without a batch size.
    """
    batch = getattr(options, "batch_size", 0)
    if not (images and batch and options.epochs) or images >= STEPS * batch:
        return {}
    return {"batch_size": (2 ** int(math.log2(max(images // STEPS, 1))), f"an epoch has {images} training images")}


def load_task(name: str) -> Task:
    """Return a task of the suite, a pretraining method as `pretrain-METHOD`, or a user's own, `path/to/file.py:NAME`.

    Those of the suite are found without torch.

    Raises:
        UsageError: a user's file is missing, or has no task or method of this name.
        UserError: a user's file fails while it is imported.
    """
    if user_code.is_in_file(name):
        needed = ("name", "options", "metrics", "primary", "open", "run", "rescore")
        file = user_code.locate(name)
        task = user_code.load_instance(file, Task, needed)
        task.file = file
        task.check_definition()
        return task
    method = name.removeprefix(PRETRAIN)
    if method != name:
        return importlib.import_module(f"backbones.pretrain.{method}.method").METHOD
    return importlib.import_module(f"tasks.{name}.task").TASK
