"""Top-1 and top-5 of a classifier's outputs, for the tasks that have one. Letters: S images, C classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backbones.backbone import Backbone
from backbones.data.loading.images import Transform
from backbones.data.splits.split import Split
from tasks.reference.metrics.accuracy import top, top_bounds
from tasks.reference.recomputed import Row, Values, compare
from tasks.reference.run_inputs import RunInputs, rows

TOP = (1, 5)


def logits(run: RunInputs, backbone: Backbone, split: Split, transform: Transform) -> NDArray[Any]:
    """[S, C] of the images looked at."""
    found: NDArray[Any] = rows(backbone.logits, lambda place: transform(split.read(place)), run.places(), "images")
    return found


def top_rows(
    run: RunInputs,
    outputs: NDArray[Any],
    errors: NDArray[Any],
    labels: NDArray[Any],
    names: dict[str, int],
    prefix: str = "",
) -> list[Row]:
    """Rows of scores that are shares of images with the true class among the best.

    Args:
        outputs: [S, C]. errors: [S], of an image's outputs as the run had them. labels: [S].
        names: score -> how many are the best.
        prefix: of the outcomes `rank` and `ties`.
    """
    found = []
    for name, k in names.items():
        values = Values()
        for output, error, label in zip(outputs, errors, labels):
            values.add(top(output, label, k), *top_bounds(output, label, k, error))
        rank, ties = run.outcomes[f"{prefix}rank"], run.outcomes[f"{prefix}ties"]
        per_sample = np.clip((k - rank) / (ties + 1), 0, 1)
        found += compare(
            name, run.scores.get(name), per_sample, values, run.places(), run.outcomes["sample"], run.precision
        )
    return found


def of_backbone(
    run: RunInputs, backbone: Backbone, split: Split, transform: Transform, columns: Tensor | None = None
) -> list[Row]:
    """`top1` and `top5` of a backbone's own classifier; `columns` as `tasks.classify.choose_columns` gives them.

    A logit is a product with the features, so it is off by the same share of the largest one.
    """
    found = logits(run, backbone, split, transform)
    errors = 4 * run.error * np.abs(found).max(1)
    if columns is not None:
        chosen = columns.numpy()
        found = np.where(chosen >= 0, found[:, np.maximum(chosen, 0)], -np.inf)
    labels = split.labels[run.places()]
    if columns is not None:  # an image whose class has no output is never right
        found = np.where((columns.numpy()[labels] < 0)[:, None], _last(found, labels), found)
    return top_rows(run, found, errors, labels, {f"top{k}": k for k in TOP})


def _last(outputs: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Outputs [S, C] by which the class of `labels` [S] comes last."""
    return np.where(np.arange(outputs.shape[1]) == labels[:, None], -1.0, 1.0)
