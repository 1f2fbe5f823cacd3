"""Weighted k-nearest-neighbour classification, as DINO evaluates features (arXiv 2104.14294, section 4.1).

Letters: M training samples, N test samples, D channels, C classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from backbones.backbone import Backbone
from backbones.data.classification import ClassificationData, SplitDataset
from backbones.data.images import Transform
from backbones.engine.context import Context
from backbones.engine.dist import broadcast_object
from backbones.engine.extract import extract
from backbones.errors import UserError

TOP = 5
BLOCK_ELEMENTS = 2**27  # similarities held at a time when no block is given: half a GiB


def true_class_places(
    backbone: Backbone,
    data: ClassificationData,
    transform: Transform,
    context: Context,
    *,
    k: Sequence[int],
    temperature: float,
    batch_size: int,
) -> dict[int, np.ndarray] | None:
    """Classifies the validation images by their neighbours among the training images; the same on every rank.

    Args:
        transform: PIL image -> tensor.
        k, temperature: see `weighted_knn`.

    Returns:
        For each k, the place [N] of the true class among the five with the most votes, 5 where it is not among them.
        None where a feature is not finite.
    """
    assert data.train is not None
    assert data.val is not None
    train, val = (
        extract(backbone.pooled, SplitDataset(split, transform), context, batch_size=batch_size, label=label)
        for split, label in ((data.train, "training features"), (data.val, "validation features"))
    )
    if not (torch.isfinite(train).all() and torch.isfinite(val).all()):
        return None
    found = None
    if context.ranks.first:
        labels = torch.from_numpy(data.train.labels)
        ranked = weighted_knn(
            train.to(context.device), labels, val, k=k, temperature=temperature, classes=len(data.classes), top=TOP
        )
        found = {number: places(ranked[number], torch.from_numpy(data.val.labels)) for number in k}
    return broadcast_object(found)


def places(ranked: Tensor, labels: Tensor) -> np.ndarray:
    """[N]: how many of the classes [N, top], by falling votes, stand before the true one; top where it is missing."""
    hits = ranked == labels[:, None]
    return torch.where(hits.any(1), hits.int().argmax(1), hits.shape[1]).numpy()


@torch.no_grad()
def weighted_knn(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    k: Sequence[int],
    temperature: float,
    classes: int,
    block: int | None = None,
    top: int = TOP,
) -> dict[int, Tensor]:
    """The classes that the k nearest training samples vote for, each with weight exp(cosine similarity / temperature).

    Everything is float32 on the device of `train`, and the same on every run: of equally near samples the earlier ones
    count as nearer, of classes with equally many votes the lower number comes first.

    Args:
        train: [M, D], normalised here.
        labels: [M], integers below `classes`.
        test: [N, D], normalised here.
        k: numbers of neighbours.
        temperature: of the votes.
        classes: C.
        block: test samples compared at a time.
        top: classes returned for each sample, C at most.

    Returns:
        For each k, classes [N, top] on the CPU, those with the most votes first.

    Raises:
        UserError: a k below 1 or above M.
    """
    samples = len(train)
    wrong = [number for number in k if not 1 <= number <= samples]
    if wrong:
        raise UserError(f"k-NN with k = {wrong[0]}: k must lie between 1 and the {samples} training images")
    train, test = (functional.normalize(rows.float(), dim=1) for rows in (train, test))
    labels = labels.to(train.device)
    block = block or max(1, BLOCK_ELEMENTS // samples)
    found: dict[int, list[Tensor]] = {number: [] for number in k}
    for rows in test.split(block):
        similarity, nearest = _nearest(rows.to(train.device) @ train.T, max(k))
        for number, ranked in _ranked(similarity, labels[nearest], k, temperature, classes):
            found[number].append(ranked[:, :top].cpu())
    empty = torch.empty(0, min(top, classes), dtype=torch.int64)
    return {number: torch.cat(parts) if parts else empty for number, parts in found.items()}


def _nearest(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest similarities of each row [B, M] and their places, [B, k] each; the earlier of equal ones first."""
    values, places = similarity.topk(k)
    # Which of several values equal to the smallest one `topk` takes is not defined.
    tied = ((similarity >= values[:, -1:]).sum(1) > k).nonzero().flatten()
    if len(tied):
        order = similarity[tied].sort(dim=1, descending=True, stable=True)
        values[tied], places[tied] = order.values[:, :k], order.indices[:, :k]
    places, order_of_places = places.sort(dim=1)
    values, order_of_values = values.gather(1, order_of_places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order_of_values)


def _ranked(
    similarity: Tensor, labels: Tensor, k: Sequence[int], temperature: float, classes: int
) -> list[tuple[int, Tensor]]:
    """(k, classes [B, C] by falling votes) for similarities and labels [B, max k] of the neighbours, nearest first."""
    weights = ((similarity - 1) / temperature).exp()  # less 1: a common factor that keeps small temperatures finite
    votes = torch.zeros(len(similarity), classes, device=similarity.device)
    found = []
    for index in range(labels.shape[1]):
        # one neighbour at a time: the order of summation is then the same on every device
        votes.scatter_add_(1, labels[:, index : index + 1], weights[:, index : index + 1])
        if index + 1 in k:
            found.append((index + 1, votes.sort(dim=1, descending=True, stable=True).indices))
    return found
