"""A pretraining method as the evaluator's task: its run has a record, a history and an outcome like any other."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backbones.data.classification import ClassificationData, open_classification
from backbones.data.spec import DatasetSpec
from backbones.engine.checkpoint import History
from backbones.engine.context import Context
from backbones.pretrain.method import Method
from backbones.spec import BackboneSpec
from tasks.task import Metric, Outcomes, Scores, Task
from tasks.token_diagnostics.during_training import TokenWatch, check_backbone, epochs_of
from transfer.records.store import history


class Pretraining(Task):
    """One of `backbones/pretrain/` through the common evaluator."""

    from_scratch = True
    shares_tokens = True

    def __init__(self, method: Method, tokens_at: Sequence[int] = ()):
        """`tokens_at`: epochs after which the tokens are looked at, see `tasks.token_diagnostics.during_training`."""
        self.method, self.tokens_at = method, tokens_at
        self.name, self.version, self.options = f"pretrain-{method.name}", method.version, method.options
        self.metrics, self.primary = {name: Metric() for name in method.metrics}, method.primary

    def open(
        self, spec: DatasetSpec, options: Any, *, root: Path | None, subset: int | None, skip_unreadable: bool
    ) -> ClassificationData:
        """The images by split and class; see `backbones.data.classification`."""
        return open_classification(
            spec,
            root,
            label_fraction=options.label_fraction,
            fraction_seed=options.fraction_seed,
            subset=subset,
            skip_unreadable=skip_unreadable,
        )

    def check(self, spec: BackboneSpec, dataset: ClassificationData, options: Any, context: Context) -> None:
        """What the method can know to fail."""
        if self.tokens_at:
            check_backbone(spec, options.size)
        self.method.check(spec, dataset, options, context)

    def run(
        self, spec: BackboneSpec, dataset: ClassificationData, options: Any, context: Context
    ) -> tuple[Scores, Outcomes]:
        """Trains, validates, exports; the scores end the history, as validations do on the way."""
        context.observer = TokenWatch(self.tokens_at, dataset, options, context) if self.tokens_at else None
        scores, outcomes = self.method.run(spec, dataset, options, context)
        if context.folder and (seen := _looked_at(context.folder)):
            context.details["tokens_at"] = seen
        if scores and context.folder and context.ranks.first:
            history = History(context.folder, context.outcome.step)
            history.add({"step": context.outcome.step, "epoch": options.epochs, **scores})
            history.flush()
        return scores, outcomes

    def finish(self, folder: Path, dataset: ClassificationData, options: Any) -> None:
        """Says so where a reused run's tokens were not looked at, which cannot be made up for."""
        seen = _looked_at(folder) if self.tokens_at else []
        lacking = [epoch for epoch in epochs_of(self.tokens_at, options.epochs) if epoch not in seen]
        if lacking:
            said = f"after epoch {' '.join(map(str, lacking))}"
            print(f"{folder}: made without a look at the tokens {said}; remove it, and train again", file=sys.stderr)

    def rescore(self, outcomes: Outcomes) -> Scores:
        """The scores of the last validation."""
        return self.method.rescore(outcomes)

    def repeat(self) -> str:
        """The run's options.yaml is a recipe."""
        return "python -m transfer.pretrain options.yaml"


def _looked_at(folder: Path) -> list[int]:
    """The epochs after which the tokens of a training were looked at, by this process or one before it."""
    return [entry["epoch"] for entry in history(folder, "layers")]
