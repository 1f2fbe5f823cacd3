"""Top-1 and top-5 accuracy, from the rank of each image's true class: in a classifier's logits, or in the votes of the
nearest training images, as DINO evaluates features (weighted k-nearest neighbours; arXiv 2104.14294, section 4.1).

Shapes: M images, B of them at a time, C classes of the model, S classes of the data, D channels of features; for
neighbours M training samples and N test samples.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from backbones.backbone import Backbone, create
from backbones.spec import BackboneSpec
from backbones.weights.locate import find_weights
from transfer.core.errors import UserError
from transfer.core.exports import pretraining_facts, weights_facts
from transfer.data.classification import ClassificationData, Split
from transfer.data.loading.augment import view_of
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.engine.device import on_device
from transfer.engine.dist import by_first
from transfer.engine.extract import check_finite, check_varied, compute_rows, extract, raise_if_broken
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
    return named_scores(extract_view(backbone.logits, images, options, context, "classes"), backbone)


def extract_view(
    encode: Callable[[Tensor], Tensor], split: Split, options: Any, context: Context, label: str, preload: bool = True
) -> Tensor:
    """Return what `encode` gives for the view of each image of a split that is evaluated; see `extract`."""
    view = SplitDataset(split, view_of(options), preload=preload)
    return extract(encode, view, context, batch_size=options.eval_batch_size, label=label)


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
    others = [name for name in outcomes if re.fullmatch(r"best_rank|rank_k\d+", name)]
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


BLOCK_ELEMENTS = 2**26  # similarities held at a time: half a GiB
SPARE = 32  # samples besides the k nearest by matrix products, whose last bits depend on their sizes
ROWS = 4096  # samples normalised at a time


def knn_class_ranks(
    backbone: Backbone,
    data: ClassificationData,
    options: Any,
    context: Context,
    *,
    k: Sequence[int],
    temperature: float,
    must_vary: bool = False,
) -> dict[int, NDArray[Any]]:
    """Classify the validation images by their neighbours among the training images; the result is the same on every
    rank.

    Args:
        options: view and batch size of the evaluation.
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
        features[name] = extract_view(backbone.pooled, split, options, context, f"{name} features")
        check_finite(features[name], split.names, f"features of the {name} split")
        if must_vary:
            check_varied(features[name], context.eval_precision, name)

    def of_each_k() -> dict[int, NDArray[Any]]:
        labels, true = (torch.from_numpy(split.labels) for split in (data.training, data.validation))
        (train,), test = on_device([features["training"]], context.device, copies=1), features["validation"]
        ranked = weighted_knn(train, labels, test, k=k, temperature=temperature, classes=len(data.classes))
        return {number: voted_ranks(ranked[number], true, number) for number in k}

    return by_first(of_each_k)


def voted_ranks(ranked: Tensor, labels: Tensor, k: int) -> NDArray[Any]:
    """Return [N]: how many of the classes [N, top], by falling votes, stand before the true one; 5 if it is missing.

    k neighbours name k classes at most: of fewer than five only as many count, as in DINO's own evaluation.
    """
    hits = ranked[:, : min(max(TOP), k)] == labels[:, None]
    return torch.where(hits.any(1), hits.int().argmax(1), max(TOP)).numpy()


@torch.no_grad()
def weighted_knn(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    k: Sequence[int],
    temperature: float,
    classes: int,
    top: int = max(TOP),
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


def _rerank(unit: Tensor, train: Tensor, places: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return float64 similarities and places [B, k] of the k nearest among the candidates at `places` [B, k'].

    Of equally near ones the lower place comes first.
    """
    places = places.sort(dim=1).values
    similarity = (_normalise(train[places]) * unit[:, None]).sum(2)
    similarity, order = similarity.sort(dim=1, descending=True, stable=True)
    return similarity[:, :k], places.gather(1, order)[:, :k]


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
