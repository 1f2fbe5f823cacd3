"""Weighted k-nearest-neighbour classification, as DINO evaluates features (arXiv 2104.14294, section 4.1).

Shapes: M training samples, N test samples, D channels, C classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from backbones.backbone import Backbone
from transfer.core.errors import UserError
from transfer.data.classification import ClassificationData
from transfer.data.loading.images import Transform
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.engine.device import on_device
from transfer.engine.dist import by_first
from transfer.engine.extract import check_finite, check_varied, extract

TOP = 5
BLOCK_ELEMENTS = 2**26  # similarities held at a time: half a GiB
SPARE = 32  # samples besides the k nearest by matrix products, whose last bits depend on their sizes
ROWS = 4096  # samples normalised at a time


def knn_class_ranks(
    backbone: Backbone,
    data: ClassificationData,
    transform: Transform,
    context: Context,
    *,
    k: Sequence[int],
    temperature: float,
    batch_size: int,
    must_vary: bool = False,
) -> dict[int, NDArray[Any]]:
    """Classify the validation images by their neighbours among the training images; the result is the same on every
    rank.

    Args:
        transform: PIL image -> tensor.
        k, temperature: see `weighted_knn`.
        must_vary: whether features that do not tell the images apart are an error; a training has a watch of its own.

    Returns:
        For each k, the place [N] of the true class among the five with the most votes, 5 where it is not among them.

    Raises:
        NotFinite: a feature is not, with its image.
        NotVaried: they are the same for all images of a split, if they must vary.
    """
    features = {}
    for name, split in (("training", data.training), ("validation", data.validation)):
        images = SplitDataset(split, transform)
        features[name] = extract(backbone.pooled, images, context, batch_size=batch_size, label=f"{name} features")
        check_finite(features[name], split.names, f"features of the {name} split")
        if must_vary:
            check_varied(features[name], context.eval_precision, name)

    def of_each_k() -> dict[int, NDArray[Any]]:
        labels, true = (torch.from_numpy(split.labels) for split in (data.training, data.validation))
        (train,), test = on_device([features["training"]], context.device, copies=1), features["validation"]
        ranked = weighted_knn(train, labels, test, k=k, temperature=temperature, classes=len(data.classes))
        return {number: true_class_ranks(ranked[number], true, number) for number in k}

    return by_first(of_each_k)


def true_class_ranks(ranked: Tensor, labels: Tensor, k: int) -> NDArray[Any]:
    """Return [N]: how many of the classes [N, top], by falling votes, stand before the true one; TOP if it is missing.

    k neighbours name k classes at most: of fewer than TOP only as many count, as in DINO's own evaluation.
    """
    hits = ranked[:, : min(TOP, k)] == labels[:, None]
    return torch.where(hits.any(1), hits.int().argmax(1), TOP).numpy()


@torch.no_grad()
def weighted_knn(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    k: Sequence[int],
    temperature: float,
    classes: int,
    top: int = TOP,
) -> dict[int, Tensor]:
    """Return the classes that the k nearest training samples vote for, each with weight exp(cosine similarity /
    temperature).

    Similarities and votes are computed in float64, on the device of `train`. The result is the same on every run: of
    equally near samples the earlier ones count as nearer, of classes with equally many votes the lower number comes
    first. Votes are held by their logarithms, so that none underflows at any temperature.

    Args:
        train: [M, D], normalised here.
        labels: [M], integers below `classes`.
        test: [N, D], normalised here.
        k: numbers of neighbours.
        temperature: the temperature of the votes, above 0.
        classes: C.
        top: classes returned for each sample, C at most.

    Returns:
        For each k, classes [N, top] on the device of `test`, those with the most votes first.

    Raises:
        UserError: a k below 1 or above M.
    """
    samples, channels = train.shape
    wrong = [number for number in k if not 1 <= number <= samples]
    if wrong:
        raise UserError(f"k-NN with k = {wrong[0]}: k must lie between 1 and the {samples} training images")
    labels, candidates = labels.to(train.device), min(max(k) + SPARE, samples)
    largest = max(samples, 4 * classes, 16 * candidates * channels)
    classes_of_k: dict[int, list[Tensor]] = {number: [] for number in k}
    for rows in test.split(max(1, BLOCK_ELEMENTS // largest)):
        unit = _normalise(rows.to(train.device))
        products = torch.cat([unit @ _normalise(part).T for part in train.split(ROWS)], dim=1)
        similarity, nearest = _rerank(unit, train, _top_k(products, candidates), max(k))
        for number, ranked in _rank_classes(similarity, labels[nearest], k, temperature, classes):
            classes_of_k[number].append(ranked[:, :top].to(test.device, copy=True))
    empty = torch.empty(0, min(top, classes), dtype=torch.int64, device=test.device)
    return {number: torch.cat(parts) if parts else empty for number, parts in classes_of_k.items()}


def _normalise(features: Tensor) -> Tensor:
    return functional.normalize(features.double(), dim=-1)


def _top_k(similarity: Tensor, k: int) -> Tensor:
    """Return the places [B, k] of the k largest similarities of each row [B, M], in any order; the earlier of equal
    ones.
    """
    values, places = similarity.topk(k)
    # Which of several values equal to the smallest one `topk` takes is not defined.
    tied = ((similarity >= values[:, -1:]).sum(1) > k).nonzero().flatten()
    if len(tied):
        places[tied] = similarity[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return places


def _sort(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return both [B, k] by falling values; of equal values the lower place comes first."""
    places, order_of_places = places.sort(dim=1)
    values, order_of_values = values.gather(1, order_of_places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order_of_values)


def _rerank(unit: Tensor, train: Tensor, places: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return float64 similarities and places [B, k] of the k nearest among the candidates at `places` [B, k']."""
    similarity, places = _sort((_normalise(train[places]) * unit[:, None]).sum(2), places)
    return similarity[:, :k], places[:, :k]


def _rank_classes(
    similarity: Tensor, labels: Tensor, k: Sequence[int], temperature: float, classes: int
) -> list[tuple[int, Tensor]]:
    """Return (k, classes [B, C] by falling votes), given similarities and labels [B, max k] of neighbours, nearest
    first.
    """
    exponents = similarity / temperature
    # Of each class the exponent of its nearest neighbour, and the sum of its votes as multiples of that one's.
    largest = torch.full((len(similarity), classes), -torch.inf, dtype=similarity.dtype, device=similarity.device)
    sums = torch.zeros_like(largest)
    ranked = []
    for index in range(labels.shape[1]):
        # one neighbour at a time: the order of summation is then the same on every device
        label, exponent = labels[:, index : index + 1], exponents[:, index : index + 1]
        first = largest.gather(1, label)
        first = torch.where(first == -torch.inf, exponent, first)
        largest.scatter_(1, label, first)
        sums.scatter_add_(1, label, (exponent - first).exp())
        if index + 1 in k:
            votes = largest + sums.log()
            ranked.append((index + 1, votes.sort(dim=1, descending=True, stable=True).indices))
    return ranked
