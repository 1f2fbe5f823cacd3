"""What the methods of the suite do alike: train, score the validation split after epochs and at the end, export."""

import time
from collections.abc import Callable
from typing import Any

from backbones.backbone import Backbone
from backbones.data.classification import ClassificationData
from backbones.data.loading.loader import RunLoader
from backbones.engine.context import Context
from backbones.engine.learner import Learner
from backbones.engine.loop import fit
from backbones.pretrain.method import Method, Outcomes, Scores
from backbones.runtime.finite import NotFinite


def train_and_score(
    method: Method,
    learner: Learner,
    backbone: Backbone,
    loader: RunLoader,
    validate: Callable[[Backbone, ClassificationData, Any, Context], Outcomes],
    data: ClassificationData,
    options: Any,
    context: Context,
    **about: Any,
) -> tuple[Scores, Outcomes]:
    """Return the scores and outcomes after training; both empty where it broke down.

    Args:
        backbone: the one within the learner that is scored and exported.
        validate: outcomes of the validation split, empty without one; may raise NotFinite.
        about: what the export says besides network and scores.
    """
    if data.val is None:
        context.note(f"{data.name} has no validation split: nothing is scored")

    def scores_after(epoch: int) -> dict[str, Any]:
        learner.eval()
        outcomes: Outcomes = {}
        try:
            if options.validates(epoch):
                outcomes = validate(backbone, data, options, context)
        except NotFinite as broken:
            context.note(f"epoch {epoch + 1} has no scores: {broken}")
        return context.observe(backbone, epoch) | method.rescore(outcomes)

    if fit(learner, loader, options, context, scores_after).training_failed:
        return {}, {}
    start = time.monotonic()
    try:
        outcomes = validate(backbone, data, options, context)
    except NotFinite as broken:
        context.record_not_finite(broken)
        return {}, {}
    finally:
        context.cost.eval_seconds += time.monotonic() - start
    scores = method.rescore(outcomes)
    context.export(backbone, network=options.export, **about, scores=scores)
    return scores, outcomes
