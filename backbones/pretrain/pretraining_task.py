"""Adapts a pretraining method to the evaluator's interface of tasks, so that its run gets a record like any other."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.pretrain.method import Method
from backbones.spec import BackboneSpec
from transfer.data.classification import READERS, ClassificationData, open_classification
from transfer.data.spec import DatasetSpec
from transfer.records.store import history
from transfer.task import Defaults, Metric, Outcomes, Scores, Task, batch_for

if TYPE_CHECKING:
    from transfer.engine.context import Context


class Pretraining(Task):
    """A pretraining method of `backbones/pretrain/` as a task."""

    from_scratch = True
    shares_tokens = True
    formats = tuple(READERS)

    def __init__(self, method: Method, tokens_at: Sequence[int] = ()):
        """`tokens_at`: epochs after which tokens are measured; see `backbones.diagnostics.during_training`."""
        self.method, self.tokens_at = method, tokens_at
        self.name, self.version, self.options = f"pretrain-{method.name}", method.version, method.options
        self.file = method.file
        self.metrics, self.primary = {name: Metric() for name in method.metrics}, method.primary

    def complete(self) -> "Pretraining":
        """Return the task with the learner of its method."""
        return Pretraining(self.method.complete(), self.tokens_at)

    def open(
        self, spec: DatasetSpec, options: Any, *, root: Path | None, subset: int | None, drop_corrupt: bool
    ) -> ClassificationData:
        """Open the images by split and class; see `transfer.data.classification`."""
        return open_classification(
            spec,
            root,
            label_fraction=options.label_fraction,
            fraction_seed=options.fraction_seed,
            subset=subset,
            drop_corrupt=drop_corrupt,
        )

    def defaults_for_data(self, dataset: ClassificationData, options: Any) -> Defaults:
        """Return a batch size that fits a small training split."""
        return batch_for(len(dataset.train or ()), options)

    def epoch_steps(self, dataset: ClassificationData, options: Any) -> int | None:
        """Return the steps of an epoch, unless the method does not tell."""
        return self.method.epoch_steps(len(dataset.train or ()), options)

    def check(self, spec: BackboneSpec, dataset: ClassificationData, options: Any, context: "Context") -> None:
        """Raise UserError for a combination of options with which the method would fail."""
        if self.tokens_at:
            from backbones.diagnostics.during_training import check_backbone

            check_backbone(spec, options.size)
        self.method.check(spec, dataset, options, context)

    def run(
        self, spec: BackboneSpec, dataset: ClassificationData, options: Any, context: "Context"
    ) -> tuple[Scores, Outcomes]:
        """Train, validate and export; the scores become the last entry of the history."""
        from backbones.diagnostics.during_training import TokenWatch
        from transfer.engine.checkpoint import History

        context.observer = TokenWatch(self.tokens_at, dataset, options, context) if self.tokens_at else None
        scores, outcomes = self.method.run(spec, dataset, options, context)
        if context.folder and (epochs := [entry["epoch"] for entry in history(context.folder, "layers")]):
            context.details["tokens_at"] = epochs
        if scores and context.folder and context.ranks.first:
            log = History(context.folder, kept=None)
            log.add({"step": context.outcome.step, "epoch": options.epochs, **scores})
            log.flush()
        return scores, outcomes

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Return the scores of the last validation."""
        return self.method.rescore(outcomes)

    def repeat(self) -> str:
        """Return the command that repeats the run; its options.yaml is a recipe."""
        return "python -m transfer.pretrain options.yaml"
