"""What a pretraining method is. A module of `backbones/pretrain/` gives one, named `METHOD`, found by its file name."""

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from backbones.pretrain.options import PretrainOptions
from backbones.spec import BackboneSpec, override
from transfer.core import user_code
from transfer.core.errors import UsageError
from transfer.data.classification import ClassificationData

if TYPE_CHECKING:
    from backbones.backbone import Backbone
    from transfer.data.loading.loader import RunLoader
    from transfer.engine.context import Context
    from transfer.engine.learner import Learner

Scores = dict[str, float]
Outcomes = dict[str, NDArray[Any]]


def with_train_size(spec: BackboneSpec, size: int) -> BackboneSpec:
    """Return the backbone with this training's pixels as its `train_size`, if it is trained from random weights.

    Attention of `length="train"` counts the tokens of that size, here and in every task afterwards.
    """
    if spec.weights != "random" or spec.train_size is None:
        return spec
    return override(spec, train_size=(size, size))


class Method:
    """Base of pretraining methods.

    Attributes:
        version: goes up when weights of earlier versions are no longer comparable; part of the run key.
        options: a dataclass; the recipes under `configs/pretrain/` set its values.
        metrics: names of the scores that the last validation gives.
        primary: the score that tables sort by.
        file: a user's method as `path/to/file.py:NAME`; empty for a method of the suite.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    options: ClassVar[type[PretrainOptions]]
    metrics: ClassVar[tuple[str, ...]]
    primary: ClassVar[str]
    file: str = ""

    def epoch_steps(self, images: int, options: Any) -> int | None:
        """Return the steps of an epoch of a training split of so many images; None if the method does not tell."""
        return None

    def check(self, spec: BackboneSpec, data: ClassificationData, options: Any, context: "Context") -> None:
        """Raise the errors that can be found before anything is trained."""

    def run(
        self, spec: BackboneSpec, data: ClassificationData, options: Any, context: "Context"
    ) -> tuple[Scores, Outcomes]:
        """Train, validate, and leave the weights by `context.export`.

        Scores and per-sample results are empty when training failed (`context.outcome` says how; nothing is exported),
        or when the data has no validation split.
        """
        raise NotImplementedError

    def train_and_score(
        self,
        learner: "Learner",
        backbone: "Backbone",
        loader: "RunLoader",
        validate: "Callable[[Backbone, ClassificationData, Any, Context], Outcomes]",
        data: ClassificationData,
        options: Any,
        context: "Context",
        **about: Any,
    ) -> tuple[Scores, Outcomes]:
        """Train, score the validation split after epochs and at the end, and export, as `run` does.

        Args:
            backbone: the one within the learner that is scored and exported.
            validate: outcomes of the validation split, empty without one; may raise NotFinite.
            about: what the export says besides network and scores.
        """
        from transfer.engine.extract import NotFinite
        from transfer.engine.loop import fit

        if data.val is None:
            context.note(f"{data.name} has no validation split: nothing is evaluated")

        last: Outcomes = {}

        def scores_after(epoch: int) -> dict[str, Any]:
            learner.eval()
            outcomes: Outcomes = {}
            try:
                if options.validates(epoch):
                    outcomes = validate(backbone, data, options, context)
                if epoch + 1 == options.epochs:
                    last.update(outcomes)
            except NotFinite as broken:
                context.note(f"epoch {epoch + 1} has no metrics: {broken}")
            return context.observe(backbone, epoch) | self.rescore(outcomes)

        if fit(learner, loader, options, context, scores_after).training_failed:
            return {}, {}
        start = time.monotonic()
        try:
            outcomes = last or validate(backbone, data, options, context)
        except NotFinite as broken:
            context.record_unscorable("nonfinite", broken)
            return {}, {}
        finally:
            context.cost.eval_seconds += time.monotonic() - start
        scores = self.rescore(outcomes)
        context.export(backbone, network=options.export, **about, scores=scores)
        return scores, outcomes

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Return the scores from the per-sample results, bit-exact."""
        raise NotImplementedError

    def prepare_training(
        self, spec: BackboneSpec, data: ClassificationData, options: Any, context: "Context"
    ) -> "tuple[Learner, RunLoader]":
        """Return what is trained and the loader of its batches, for `transfer.doctor speed`.

        Raises:
            UsageError: the method does not tell them apart from its run.
        """
        raise UsageError(f"{self.name}: has no `prepare_training`, so that the speed of its parts cannot be measured")

    def complete(self) -> "Method":
        """Return the method with its learner; facts of a method import it here."""
        return self


class MethodFacts(Method):
    """Base of what is known of a method without its learner: options, metrics and version."""

    def complete(self) -> Method:
        """Return the method itself, whose module imports torch."""
        return load_method(self.name)


def load_facts(name: str) -> Method:
    """Return the facts of a method of the suite without torch, or a user's method; as `load_method`."""
    if user_code.is_in_file(name):
        return load_method(name)
    return importlib.import_module(f"backbones.pretrain.{name}_options").FACTS


def load_method(name: str) -> Method:
    """Return the method that module `backbones.pretrain.<name>` gives, or a user's method `path/to/file.py:NAME`.

    Raises:
        UsageError: a user's file is missing, or has no method of this name.
        UserError: a user's file fails while it is imported.
    """
    if user_code.is_in_file(name):
        return _users_method(user_code.locate(name))
    return importlib.import_module(f"backbones.pretrain.{name}").METHOD


def _users_method(file: str) -> Method:
    method = user_code.load_instance(file, Method, ("name", "options", "metrics", "primary", "run", "rescore"))
    user_code.check_new_name(file, method.name, [path.stem for path in Path(__file__).parent.glob("*.py")])
    if not isinstance(method.options, type) or not issubclass(method.options, PretrainOptions):
        raise UsageError(
            f"{file}: `options` is {method.options!r}; it must be a dataclass derived from "
            "backbones.pretrain.method.PretrainOptions"
        )
    method.file = file
    return method
