"""What a pretraining method is: a task whose run leaves weights, and what options all have.

`backbones/pretrain/NAME/method.py` gives `METHOD`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from backbones.spec import BackboneSpec, override
from transfer.core import user_code
from transfer.core.errors import UsageError, reject
from transfer.core.options import Execution, Needs, Other, Range
from transfer.data.classification import READERS, ClassificationData, open_classification
from transfer.data.spec import DatasetSpec
from transfer.engine.options import FitOptions
from transfer.engine.outcome import EXPORT_RULE, above_chance, judge_export, rule_of
from transfer.statistics.contrasts import contrast
from transfer.statistics.intervals import Scores
from transfer.task import PRETRAIN, Defaults, Outcomes, Result, Task, batch_for

if TYPE_CHECKING:
    from backbones.backbone import Backbone
    from transfer.data.loading.loader import RunLoader
    from transfer.engine.context import Context
    from transfer.engine.learner import Learner

JUDGED = 5000
"""Training images by which an exported average is judged."""


def with_train_size(spec: BackboneSpec, size: int) -> BackboneSpec:
    """Return the backbone with this training's pixels as its `train_size`, if it is trained from random weights.

    Attention of `length="train"` counts the tokens of that size, here and in every task afterwards.
    """
    if spec.weights != "random" or spec.train_size is None:
        return spec
    return override(spec, train_size=(size, size))


def noted_backbone(spec: BackboneSpec, options: Any, context: "Context", *, images: int, **given: Any) -> "Backbone":
    """Return a backbone, noted for the record.

    Args:
        images: of one forward pass on this rank.
        given: for `create`, besides the size.
    """
    from backbones.backbone import create
    from backbones.flops import flops
    from transfer.core.seeding import seed_torch

    seed_torch(context.seed)
    backbone = create(spec, img_size=options.size, **given)
    context.note_backbone(backbone, flops(backbone, options.size), images)
    return backbone


def initial_backbone(spec: BackboneSpec, options: Any, context: "Context", *, images: int, **given: Any) -> "Backbone":
    """Return the backbone that a pretraining starts from, noted for the record; see `noted_backbone`."""
    return noted_backbone(with_train_size(spec, options.size), options, context, images=images, **given)


def check_epochs(at: Sequence[int], epochs: int) -> None:
    """Raise UsageError for an epoch (from 1, or from -1 for the last) that a training does not have."""
    if any(not 1 <= abs(epoch) <= epochs for epoch in at):
        listed = " ".join(map(str, at))
        raise UsageError(f"--tokens-at {listed}: epochs count from 1 to {epochs}, or from -1 for the last")


@dataclass(kw_only=True)
class PretrainOptions(FitOptions):
    """What every pretraining method takes besides the options of the training loop."""

    label_fraction: Annotated[float, Range(0, 1)]
    """Share of each class's training images; 1 takes all. They are chosen by content digest and `fraction_seed`."""
    fraction_seed: Annotated[int, Needs(label_fraction=Other(1)), Range(0)]
    """Seed of the choice of images. It is apart from the run's own, so that runs of several seeds share their
    images."""
    validate_at: Annotated[tuple[int, ...], Execution()]
    """Epochs (from 1; negative ones from the end) after which the validation split is scored, besides the last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_fraction == 0:
            reject("--label-fraction must be above 0")
        if 0 in self.validate_at:
            reject(f"--validate-at {self.validate_at}: epochs count from 1, or from -1 for the last")

    def validates(self, epoch: int) -> bool:
        """Return whether the validation split is scored after this epoch (from 0)."""
        return epoch + 1 in self.validate_at or epoch - self.last_epoch in self.validate_at


class PretrainingMethod(Task):
    """Base of pretraining methods. `run` trains, validates, and leaves the weights by `export_backbone`.

    Scores and per-sample results are empty when training failed (`context.outcome` says how; nothing is exported), or
    when the data has no validation split.

    Attributes:
        name: `pretrain-` and the name that recipes give as `method`.
        options: a dataclass derived from `PretrainOptions`; the recipes under `configs/pretrain/` set its values.
        tokens_at: epochs after which tokens are measured; see `backbones.diagnostics.recorder`.
    """

    options: type[PretrainOptions]
    from_scratch = True
    shares_tokens = True
    formats = tuple(READERS)
    tokens_at: tuple[int, ...] = ()

    @property
    def method(self) -> str:
        """The name that recipes give."""
        return self.name.removeprefix(PRETRAIN)

    def open(self, spec: DatasetSpec, options: Any, *, root: Path | None, **chosen: Any) -> ClassificationData:
        """Open the images by split and class; see `transfer.data.classification`."""
        chosen |= {"label_fraction": options.label_fraction, "fraction_seed": options.fraction_seed}
        return open_classification(spec, root, **chosen)

    def defaults_for_data(self, spec: BackboneSpec, dataset: ClassificationData, options: Any) -> Defaults:
        """Return a batch size that fits a small training split."""
        return batch_for(len(dataset.train or ()), options)

    def check(self, spec: BackboneSpec, dataset: ClassificationData, options: Any, context: "Context") -> None:
        """Raise the errors that can be found before anything is trained."""
        if self.tokens_at:
            from backbones.diagnostics.recorder import check_hook_points

            check_hook_points(spec, options.size)
        super().check(spec, dataset, options, context)

    def execute(self, spec: BackboneSpec, dataset: ClassificationData, options: Any, context: "Context") -> Result:
        """Call `run`, and measure tokens; the scores become the last entry of the history."""
        from backbones.diagnostics.recorder import TokenWatch
        from transfer.engine.checkpoint import History, history

        if self.tokens_at:
            context.observer = partial(TokenWatch, self.tokens_at, dataset, options, context)
        scores, outcomes = super().execute(spec, dataset, options, context)
        if context.folder and (epochs := [entry["epoch"] for entry in history(context.folder, "layers")]):
            context.details["tokens_at"] = epochs
        if scores and context.folder and context.ranks.first:
            log = History(context.folder, saved=None)
            log.add({"step": context.outcome.step, "epoch": options.epochs, **context.details.get("held_out", scores)})
            log.flush()
        return scores, outcomes

    def train_and_score(
        self,
        learner: "Learner",
        loader: "RunLoader",
        validate: "Callable[[Backbone, ClassificationData, Any, Context], Outcomes]",
        data: ClassificationData,
        options: Any,
        context: "Context",
        **about: Any,
    ) -> Result:
        """Train, score the validation split after epochs and at the end, and export, as `run` does.

        Images held out of the training split are scored in its place until the end, and then both are.

        Args:
            learner: its `scored_backbone` is scored and exported.
            validate: outcomes of the validation split, empty without one; may raise NotFinite.
            about: what the export says besides network and scores.
        """
        from backbones.trained_weights import export_backbone
        from transfer.engine.extract import NotFinite
        from transfer.engine.loop import fit
        from transfer.engine.optim import changed_share

        if data.val is None and data.held_out is None:
            context.note(f"{data.name} has no validation split: nothing is evaluated")

        backbone: Any = learner.scored_backbone
        judged = options.epochs and rule_of(options) == EXPORT_RULE
        state = backbone.state_dict() if judged else {}
        initial = {name: value.detach().cpu().clone() for name, value in state.items()}
        last: Outcomes = {}
        during = data if data.held_out is None else replace(data, val=data.held_out)

        def scores_after(epoch: int) -> dict[str, Any]:
            learner.eval()
            outcomes: Outcomes = {}
            try:
                if options.validates(epoch):
                    outcomes = validate(backbone, during, options, context)
                if epoch + 1 == options.last_epoch:
                    last.update(outcomes)
            except NotFinite as broken:
                context.note(f"epoch {epoch + 1} has no metrics: {broken}")
            return self.rescore(outcomes)

        if fit(learner, loader, options, context, scores_after).nonfinite:
            return {}, {}
        start = time.monotonic()
        try:
            if judged:
                change = changed_share(initial, dict(backbone.named_parameters()))
                context.outcome = judge_export(context.outcome, change)
                if context.outcome.status == "completed" and (level := learner.signs().accuracy) is not None:
                    self._judge_average(level, lambda seen: validate(backbone, seen, options, context), data, context)
            outcomes = last or validate(backbone, during, options, context)
            if during is not data:
                context.details["held_out"] = self.rescore(outcomes)
                outcomes = validate(backbone, data, options, context)
        finally:
            context.cost.eval_seconds += time.monotonic() - start
        scores = self.rescore(outcomes)
        export_backbone(backbone, context, network=options.export, **about, scores=scores)
        if scores and judged and learner.signs().moving_targets and not context.outcome.training_failed:
            start = time.monotonic()
            backbone.load_state_dict(initial)
            self._note_gain(outcomes, validate(backbone, data, options, context), context)
            context.cost.eval_seconds += time.monotonic() - start
        return scores, outcomes

    def _judge_average(
        self,
        level: float,
        score: "Callable[[ClassificationData], Outcomes]",
        data: ClassificationData,
        context: "Context",
    ) -> None:
        """Judge an average as the network is whose accuracy its training saw: by training images, up to 5,000.

        Args:
            level: the accuracy of a constant prediction.
            score: gives the outcomes of the validation split of data.
        """
        images = len(data.training)
        seen = data.training.select(np.arange(0, images, -(-images // JUDGED)))
        right = self.rescore(score(replace(data, val=seen, held_out=None)))[self.primary]
        if not above_chance(right, level, len(seen)):
            share = f"{100 * right:.1f} % of {len(seen)} training images"
            reason = f"the exported average has {share} right, as by guessing"
            context.outcome = replace(context.outcome, status="at_chance", reason=reason)

    def _note_gain(self, outcomes: Outcomes, before: Outcomes, context: "Context") -> None:
        """Note what training gained over the weights that it started from; no outcome depends on it."""
        after, start = self.per_sample(self.primary, outcomes), self.per_sample(self.primary, before)
        if after is None or start is None or len(start) < 2:  # an interval needs two images
            return
        scores = [Scores.of_clusters(column[None], np.ones(len(column))) for column in (after, start)]
        gain = contrast(scores, (1, -1), bounds=(0.0, 1.0))
        percents = [100 * value for value in (start.mean(), gain.estimate, gain.low, gain.high)]
        context.details["before_training"] = {self.primary: float(start.mean())}
        context.note(
            "{}: {:.1f} % on the same images before training, so that training changed it by {:+.1f} points "
            "[{:.1f}, {:.1f}]".format(self.primary, *percents)
        )

    def prepare_training(
        self, spec: BackboneSpec, data: ClassificationData, options: Any, context: "Context"
    ) -> "tuple[Learner, RunLoader]":
        """Return what is trained and the loader of its batches, for `transfer.doctor speed`.

        Raises:
            UsageError: the method does not tell them apart from its run.
        """
        if prepare := self.function("prepare_training"):
            return prepare(spec, data, options, context)
        raise UsageError(f"{self.method}: has no `prepare_training`, so that the speed of its parts cannot be measured")

    def check_definition(self) -> None:
        """Raise UsageError unless the name and options of a user's method are such that runs of it can be recorded."""
        if not str(self.name).startswith(PRETRAIN):
            raise UsageError(f"{self.file}: `name` is {self.name!r}; use '{PRETRAIN}{self.name}'")
        taken = [path.parent.name for path in Path(__file__).parent.glob("*/method.py")]
        user_code.check_new_name(self.file, self.method, taken)
        if not isinstance(self.options, type) or not issubclass(self.options, PretrainOptions):
            rule = "it must be a dataclass derived from backbones.pretrain.method.PretrainOptions"
            raise UsageError(f"{self.file}: `options` is {self.options!r}; {rule}")

    def repeat(self) -> str:
        """Return the command that repeats the run; its options.yaml is a recipe."""
        return "python -m transfer.pretrain options.yaml"
