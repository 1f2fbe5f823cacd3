"""Diagnostics of the tokens of a frozen backbone, place by place: how alike they are, how large, of which rank.

Figure 1 of "Scaled ReLU Matters for Training Vision Transformers" (arXiv 2109.03810) has the similarity after the stem,
after positions and after each block; here also around every activation of the stem, with both sides of the paper's
inequality (6), the attention's row sums and entropy (arXiv 2309.08586), and what theorem 1 is about.

Shapes: M images, P places, F fields of a place, A attentions, G fields of an attention.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Subset

from backbones.diagnostics.recorder import Recorder, check_hook_points, observe, spaced_places
from backbones.diagnostics.statistics import ATTENTION_FIELDS, TOKEN_FIELDS, attention_facts, finite_mean, layer_facts
from backbones.pretrain.accuracy import image_outcomes
from backbones.spec import BackboneSpec
from tasks.labelled_images import frozen_backbone
from tasks.tokens.task import SCORED_PLACES, TokensOptions
from transfer.core.errors import UsageError
from transfer.data.classification import ClassificationData
from transfer.data.loading.augment import view_of
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.engine.extract import check_finite
from transfer.task import Array, Outcomes, Result, Scores


def check(spec: BackboneSpec, dataset: ClassificationData, options: TokensOptions, context: Context) -> None:
    """Check that the backbone's tokens can be found at this size, and that there are enough images."""
    check_hook_points(spec, options.size)
    if options.images is not None and options.images > len(dataset.validation):
        raise UsageError(f"--images {options.images}: {dataset.name} has {len(dataset.validation)} for validation")


def run(spec: BackboneSpec, dataset: ClassificationData, options: TokensOptions, context: Context) -> Result:
    """Run the images through the backbone and record measures of its tokens."""
    backbone = frozen_backbone(spec, options, context)
    total = len(dataset.validation)
    rows = spaced_places(options.images or total, total)
    view = SplitDataset(dataset.validation, view_of(options), preload=False)
    recorder = Recorder(backbone, options.class_token)
    images = Subset(view, rows.tolist())
    places, attentions, stem = observe(recorder, images, context, batch_size=options.eval_batch_size)
    context.details["layers"] = layer_facts(recorder.layers, places)
    _check_finite(places, attentions, [dataset.validation.names[index] for index in rows.tolist()])
    context.details["attention"] = attention_facts(recorder.attentions, attentions)
    context.details["stem"] = {name: facts for name, facts in stem.items() if name != "missing"}
    context.details["missing"] = [*recorder.missing, *stem["missing"]]
    columns = image_outcomes(dataset.validation)
    outcomes = {name: column[rows] for name, column in columns.items()} | _scored(recorder, places)
    scores = rescore(outcomes)
    for measure in context.details["missing"]:
        context.note(f"not to be had: {measure}")
    for name in [name for name in SCORED_PLACES.values() if name in outcomes.keys() - scores.keys()]:
        context.note(f"{name} is not defined: no image has two tokens there that are not zero")
    return scores, outcomes


def rescore(outcomes: Outcomes) -> Scores:
    """Compute the means over the images whose similarity is defined; without any, no score."""
    means = {name: finite_mean(outcomes[name]) for name in SCORED_PLACES.values() if name in outcomes}
    return {name: mean for name, mean in means.items() if mean is not None}


def _check_finite(places: list[Array], attentions: list[Array], names: Sequence[str]) -> None:
    """Raise NotFinite, judging by fields that are defined for all finite values."""
    measured = [
        ("tokens", places, TOKEN_FIELDS.index("norm")),
        ("attention weights", attentions, ATTENTION_FIELDS.index("row_sum")),
    ]
    for quantity, several, field in measured:
        if several:
            rows = torch.from_numpy(np.stack([rows[:, field] for rows in several], axis=1))
            check_finite(rows, names, f"{quantity} of the val split")


def _scored(recorder: Recorder, places: list[Array]) -> Outcomes:
    last = {place["kind"]: rows for place, rows in zip(recorder.layers, places, strict=True)}
    similarity = TOKEN_FIELDS.index("similarity")
    return {name: last[kind][:, similarity] for kind, name in SCORED_PLACES.items() if kind in last}
