"""Top-1 and top-5 of a classifier's outputs, for the tasks that have one. Letters: S images, C classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backbones.backbone import Backbone
from backbones.data.loading.images import Transform
from backbones.data.splits.split import Split
from tasks.reference.metrics.accuracy import top_k, top_k_bounds
from tasks.reference.recomputed import SampleScores, ScoreComparison, compare_mean
from tasks.reference.run_inputs import RunInputs, encode_images

TOP = (1, 5)


def classifier_logits(run: RunInputs, backbone: Backbone, split: Split, transform: Transform) -> NDArray[Any]:
    """Return the logits [S, C] of the recomputed images."""
    outputs: NDArray[Any] = encode_images(
        backbone.logits, lambda place: transform(split.read(place)), run.sample_indices(), "images"
    )
    return outputs


def compare_top_k(
    run: RunInputs,
    outputs: NDArray[Any],
    errors: NDArray[Any],
    labels: NDArray[Any],
    names: dict[str, int],
    prefix: str = "",
) -> list[ScoreComparison]:
    """Compare scores that are fractions of images with the true class among the k best.

    Args:
        outputs: recomputed outputs [S, C]. errors: bounds [S] on the error of an image's recorded outputs. labels: [S].
        names: maps the name of a score to its k.
        prefix: prefix of the outcomes `rank` and `ties`.
    """
    comparisons = []
    for name, k in names.items():
        scores = SampleScores()
        for output, error, label in zip(outputs, errors, labels):
            scores.add(top_k(output, label, k), *top_k_bounds(output, label, k, error))
        rank, ties = run.outcomes[f"{prefix}rank"], run.outcomes[f"{prefix}ties"]
        per_sample = np.clip((k - rank) / (ties + 1), 0, 1)
        comparisons += compare_mean(
            name, run.scores.get(name), per_sample, scores, run.sample_indices(), run.outcomes["sample"], run.precision
        )
    return comparisons


def compare_classifier(
    run: RunInputs, backbone: Backbone, split: Split, transform: Transform, columns: Tensor | None = None
) -> list[ScoreComparison]:
    """Compare `top1` and `top5` of the backbone's classifier; `columns` is as returned by `choose_columns`.

    A logit is a product with the features, so it is off by the same share of the largest one.
    """
    outputs = classifier_logits(run, backbone, split, transform)
    errors = 4 * run.feature_error * np.abs(outputs).max(1)
    if columns is not None:
        chosen = columns.numpy()
        outputs = np.where(chosen >= 0, outputs[:, np.maximum(chosen, 0)], -np.inf)
    labels = split.labels[run.sample_indices()]
    if columns is not None:  # an image whose class has no output is never right
        outputs = np.where((columns.numpy()[labels] < 0)[:, None], _ranked_last(outputs, labels), outputs)
    return compare_top_k(run, outputs, errors, labels, {f"top{k}": k for k in TOP})


def _ranked_last(outputs: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Return outputs [S, C] that rank the class of `labels` [S] last."""
    return np.where(np.arange(outputs.shape[1]) == labels[:, None], -1.0, 1.0)
