"""Top-1 and top-5 accuracy of a classifier, from the rank of each image's true class.

Shapes: M images, B of them at a time, C classes of the model, S classes of the data.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backbones.backbone import Backbone, create
from backbones.spec import BackboneSpec
from backbones.weights.locate import find_weights
from transfer.core.exports import pretraining_facts, weights_facts
from transfer.data.classification import Split
from transfer.data.loading.augment import view_of
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.engine.extract import compute_rows, raise_if_broken
from transfer.task import Outcomes, Scores, share_among

TOP = (1, 5)


def top_k(backbone: Backbone, split: Split, options: Any, context: Context, columns: Tensor | None = None) -> Outcomes:
    """Classify a split; the result is the same on every rank.

    Args:
        options: view and batch size of the evaluation.
        columns: [S], for each class of the data its place among the model's C outputs, -1 where it has none (see
            `class_columns`); the best class is then the best of these alone. None: the outputs are the data's classes.

    Returns:
        `rank` and `ties` [M] of the true classes (see `true_class_ranks`), and `image_outcomes`.

    Raises:
        NotFinite: a logit is not, with its image.
    """
    backbone.eval()

    def ranks(images: Tensor, labels: Tensor) -> Tensor:
        return true_class_ranks(backbone.logits(images).float(), labels, columns)

    images, batch = SplitDataset(split, view_of(options)), options.eval_batch_size
    ranks_and_ties = compute_rows(ranks, images, context, batch_size=batch, label="accuracy")
    raise_if_broken(ranks_and_ties[:, 0] < 0, split.names, f"logits of the {split.name} split")
    return {"rank": ranks_and_ties[:, 0].numpy(), "ties": ranks_and_ties[:, 1].numpy(), **image_outcomes(split)}


def restore(spec: BackboneSpec, options: Any, context: Context) -> Backbone:
    """Return a trained backbone with its classifier."""
    return create(spec, img_size=options.size, classes="trained")


def predict(backbone: Backbone, images: Split, options: Any, context: Context) -> Outcomes:
    """Classify new images, from logits as `top_k` computes them, among all classes of the weights."""
    view, batch = SplitDataset(images, view_of(options)), options.eval_batch_size
    logits = compute_rows(lambda x, *_: backbone.logits(x).float(), view, context, batch_size=batch, label="classes")
    return named_scores(logits, backbone)


def named_scores(logits: Tensor, backbone: Backbone) -> Outcomes:
    """Return `logits` [M, C], `scores` [M, C] and the names of the `classes` [C], or numbers where these are unknown.

    Scores are a softmax, or a sigmoid where the run behind the weights trained with that loss.
    """
    sigmoid = weights_facts(backbone.spec.weights).get("options", {}).get("loss") == "sigmoid"
    classes = trained_classes(backbone) or range(logits.shape[1])
    scores = logits.sigmoid() if sigmoid else logits.softmax(1)
    return {"logits": logits.numpy(), "scores": scores.numpy(), "classes": np.array([*map(str, classes)])}


def trained_classes(backbone: Backbone) -> tuple[str, ...] | None:
    """Return the names of the classifier's outputs (from pretrain.json, or ImageNet's for timm); None if unknown.

    Raises:
        UserError: pretrain.json is damaged.
    """
    located = find_weights(backbone.spec)
    if located.timm_name:
        return imagenet_synsets(backbone.classes or 0)
    classes = pretraining_facts(located.folder).get("classes") if located.folder else None
    return None if classes is None else tuple(map(str, classes))


def image_outcomes(split: Split) -> Outcomes:
    """Return `sample` [M], the names, `cluster` [M] for resampling: every image is its own cluster, and `label` [M],
    unless images have several.
    """
    label = {"label": split.labels} if split.true_labels is None else {}
    return {"sample": np.array(list(split.names)), "cluster": np.arange(len(split)), **label}


def true_class_ranks(logits: Tensor, labels: Tensor, columns: Tensor | None = None) -> Tensor:
    """Return how many classes stand above the true one, and how many others are level with it, as int64 [B, 2].

    A class without a column is never found: it stands below all and the k best. (-1, -1) where a logit is not finite.

    Args:
        logits: [B, C]. columns: see `top_k`.
        labels: [B], classes of the data; or [B, L], all that are right, -1 for none: the best of them has the rank.
    """
    if columns is not None:
        columns = columns.to(logits.device)
        logits = logits[:, columns.clamp(min=0)]
    broken = ~logits.isfinite().all(1)
    if columns is not None:
        logits = logits.masked_fill(columns < 0, -torch.inf)
    labels = labels if labels.ndim == 2 else labels[:, None]
    of_true = logits.gather(1, labels.clamp(min=0)).masked_fill(labels < 0, -torch.inf)
    true, best = of_true.max(1, keepdim=True)
    ranks = torch.stack([(logits > true).sum(1), (logits == true).sum(1) - (of_true == true).sum(1)], 1)
    if columns is not None:
        missing = columns[labels.gather(1, best)[:, 0]] < 0
        ranks[missing] = torch.tensor([len(columns) + max(TOP), 0], device=ranks.device)
    return ranks.masked_fill(broken[:, None], -1)


def accuracies(outcomes: Outcomes) -> Scores:
    """Return `top1` and `top5`, the share of images whose true class is among the k best, and `macro_top1`; nothing
    without outcomes. `top1` of other ranks has their name: `best_top1` of `best_rank`, `top1_k20` of `rank_k20`.

    A class that is level with t others takes each of their places with the same probability, so a model that gives
    every class the same logit has the accuracy of guessing.
    """
    if not outcomes:
        return {}
    among = {k: share_among(k, "rank", outcomes) for k in TOP}
    scores = {f"top{k}": float(right.mean()) for k, right in among.items()} | macro("top1", among[1], outcomes)
    others = [name for name in outcomes if "rank" in name and name != "rank"]
    return scores | {name.replace("rank", "top1"): float(share_among(1, name, outcomes).mean()) for name in others}


def macro(name: str, right: NDArray[Any], outcomes: Outcomes) -> Scores:
    """Return `macro_<name>`, the mean over the classes that occur of the mean of their images' `right` [M]; nothing
    without labels, as in runs of earlier versions.
    """
    if "label" not in outcomes:
        return {}
    counts = np.bincount(outcomes["label"])
    return {f"macro_{name}": float((np.bincount(outcomes["label"], right)[counts > 0] / counts[counts > 0]).mean())}


def class_columns(model_classes: Sequence[str], data_classes: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Return, for each class of the data, its place among the model's by name (-1: none), and the names without a
    place.
    """
    place = {name: index for index, name in enumerate(model_classes)}
    columns = torch.tensor([place.get(name, -1) for name in data_classes], dtype=torch.int64)
    return columns, [name for name in data_classes if name not in place]


def imagenet_synsets(classes: int) -> tuple[str, ...] | None:
    """Return WordNet ids in the order of an ImageNet classifier's outputs, known by their number; None for other
    numbers.

    21,843 is Google's ImageNet-21k, which lacks one class of ImageNet-1k, n04399382 (teddy); 21,841, 21,842 and others
    are timm's lists of other releases.
    """
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": classes})
    return tuple(ImageNetInfo(subset).label_names()) if subset else None
