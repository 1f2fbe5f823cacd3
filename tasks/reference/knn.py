"""Neighbours' votes anew, from frozen features in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.backbone import Backbone
from backbones.data.loading.images import Transform
from backbones.pretrain.augment import eval_transform
from tasks.reference.metrics.knn import place, similarities, votes
from tasks.reference.recomputed import Recomputed, Row, Values, compare
from tasks.reference.run_inputs import RunInputs, rows

TOP = 5


def recompute(run: RunInputs) -> Recomputed:
    """top1 and top5 by `k` neighbours, top1_k<number> by others."""
    options = run.options
    scores: dict[str, tuple[str, int, int]] = {"top1": ("rank", options.k, 1), "top5": ("rank", options.k, TOP)}
    scores |= {f"top1_k{k}": (f"rank_k{k}", k, 1) for k in options.other_k}
    transform = eval_transform(options.size, options.resize)
    found = voted(run, run.frozen(options.size), transform, scores, options.temperature)
    return Recomputed(f"{run.weights}: {_images(run)}", found)


def _images(run: RunInputs) -> str:
    return f"{len(run.places())} images, {len(run.dataset.train)} training images"


def voted(
    run: RunInputs,
    backbone: Backbone,
    transform: Transform,
    scores: Mapping[str, tuple[str, int, int]],
    temperature: float,
) -> list[Row]:
    """Rows of scores: name -> (its outcome, neighbours, among how many of the classes the true one must be).

    Of fewer than five neighbours there are as many classes that can be found.
    """
    train, test = (
        rows(backbone.pooled, lambda index, split=split: transform(split.read(index)), places, label)  # type: ignore[misc]
        for split, places, label in (
            (run.dataset.train, range(len(run.dataset.train)), "training images"),
            (run.dataset.val, run.places(), "images"),
        )
    )
    values = {name: Values() for name in scores}
    labels = run.dataset.val.labels[run.places()]
    for feature, label in zip(test, labels):
        cosines = similarities(train, feature)
        for name, (_, k, top) in scores.items():
            values[name].add(*_right(cosines, run, int(label), k, temperature, min(top, k)))
    found = []
    for name, (outcome, k, top) in scores.items():
        per_sample = (run.outcomes[outcome] < min(top, k)).astype(float)
        found += compare(
            name, run.scores.get(name), per_sample, values[name], run.places(), run.outcomes["sample"], run.precision
        )
    return found


def _right(
    cosines: NDArray[Any], run: RunInputs, label: int, k: int, temperature: float, top: int
) -> tuple[float, float, float]:
    """Whether the true class is found; with its images' cosines as low, and as high, as their errors allow."""
    train = run.dataset.train.labels
    shift = np.where(train == label, 2, -2) * run.error
    classes = len(run.dataset.classes)
    found, low, high = (
        float(place(votes(cosines + sign * shift, train, k, temperature, classes), label, top) < top)
        for sign in (0, -1, 1)
    )
    return found, min(found, low), max(found, high)
