"""Recompute k-nearest-neighbour votes from frozen features in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.backbone import Backbone
from backbones.data.loading.images import Transform
from backbones.pretrain.augment import eval_transform
from tasks.reference.metrics.knn import class_rank, similarities, votes
from tasks.reference.recomputed import Recomputed, SampleScores, ScoreComparison, compare_mean
from tasks.reference.run_inputs import RunInputs, encode_images

TOP = 5


def recompute(run: RunInputs) -> Recomputed:
    """Recompute `top1` and `top5` with `k` neighbours, and `top1_k<number>` with other numbers."""
    options = run.options
    scores: dict[str, tuple[str, int, int]] = {"top1": ("rank", options.k, 1), "top5": ("rank", options.k, TOP)}
    scores |= {f"top1_k{k}": (f"rank_k{k}", k, 1) for k in options.other_k}
    transform = eval_transform(options.size, options.resize, view=options.view)
    comparisons = compare_votes(run, run.initial_backbone(options.size), transform, scores, options.temperature)
    return Recomputed(
        f"{run.weights_description}: {len(run.sample_indices())} images, {len(run.dataset.train)} training images",
        comparisons,
    )


def compare_votes(
    run: RunInputs,
    backbone: Backbone,
    transform: Transform,
    scores: Mapping[str, tuple[str, int, int]],
    temperature: float,
) -> list[ScoreComparison]:
    """Compare scores; `scores` maps a name to its outcome, k of the neighbours, and n of top-n accuracy.

    With fewer than n neighbours, n is k: no further class has a vote.
    """
    train, test = (
        encode_images(backbone.pooled, lambda index, split=split: transform(split.read(index)), places, label)  # type: ignore[misc]
        for split, places, label in (
            (run.dataset.train, range(len(run.dataset.train)), "training images"),
            (run.dataset.val, run.sample_indices(), "images"),
        )
    )
    values = {name: SampleScores() for name in scores}
    labels = run.dataset.val.labels[run.sample_indices()]
    for feature, label in zip(test, labels):
        cosines = similarities(train, feature)
        for name, (_, k, top) in scores.items():
            values[name].add(*_hit_with_bounds(cosines, run, int(label), k, temperature, min(top, k)))
    comparisons = []
    for name, (outcome, k, top) in scores.items():
        per_sample = (run.outcomes[outcome] < min(top, k)).astype(float)
        comparisons += compare_mean(
            name,
            run.scores.get(name),
            per_sample,
            values[name],
            run.sample_indices(),
            run.outcomes["sample"],
            run.precision,
        )
    return comparisons


def _hit_with_bounds(
    cosines: NDArray[Any], run: RunInputs, label: int, k: int, temperature: float, top: int
) -> tuple[float, float, float]:
    """Return whether the true class is in the top (1.0 or 0.0), with its bounds under the errors of the cosines."""
    train = run.dataset.train.labels
    shift = np.where(train == label, 2, -2) * run.feature_error
    classes = len(run.dataset.classes)
    hit, low, high = (
        float(class_rank(votes(cosines + sign * shift, train, k, temperature, classes), label, top) < top)
        for sign in (0, -1, 1)
    )
    return hit, min(hit, low), max(hit, high)
