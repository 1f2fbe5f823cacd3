"""Person re-identification: fine-tune with identity and triplet loss, rank queries against the gallery.

The recipe is TransReID's ViT baseline (He et al. 2021, arXiv 2102.04378); its values are in `configs/tasks/reid.yaml`.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backbones.backbone import Backbone, check_builds, create
from backbones.pretrain.accuracy import extract_view
from backbones.pretrain.method import noted_backbone
from backbones.spec import BackboneSpec
from backbones.trained_weights import export_trained, load_head, read_head
from tasks.ranking.metrics import Ranking, rank, rank_distances
from tasks.ranking.reranking import rerank
from tasks.reid.pictures import SHOWN_PLACES
from tasks.reid.task import TASK, ReidOptions
from transfer.core.errors import UsageError, UserError
from transfer.core.pictures import RANKED, RankedLists
from transfer.data.loading.images import collate_boxes, erased, reid_train_transform
from transfer.data.loading.loader import RunLoader, pk_batches
from transfer.data.reid.dataset import ReidData
from transfer.data.reid.market1501 import Sample, matched_queries
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.split import FileSplit
from transfer.engine.context import Context
from transfer.engine.device import on_device
from transfer.engine.dist import by_first, gather_rows
from transfer.engine.extract import NotVaried, check_finite
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.loop import fit
from transfer.engine.outcome import Signs
from transfer.task import Array, Outcomes, Result, Scores


class BNNeck(nn.Module):
    """Batch norm between the metric loss and the identity classifier (Luo et al. 2019, arXiv 1903.07071, section 3.4).

    The batch norm's shift is frozen at 0 and the classifier has no bias.

    Args:
        dim: the number D of channels. classes: the number C of training identities.
    """

    def __init__(self, dim: int, classes: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)
        self.norm.bias.requires_grad_(False)
        # The features it sees are gathered already: statistics over ranks would count every image once per rank.
        self.norm.sees_all_ranks = True  # type: ignore[assignment]
        self.classifier = nn.Linear(dim, classes, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map features [B, D] before the neck to features [B, D] after it and logits [B, C]."""
        with torch.autocast(features.device.type, enabled=False):
            after = self.norm(features.float())
            return after, self.classifier(after)


def batch_hard_triplet(features: Tensor, labels: Tensor, margin: float | None = None) -> Tensor:
    """Compute the triplet loss over each anchor's farthest positive and nearest negative in the batch.

    It is the mean over anchors of log(1 + exp(d_ap - d_an)), or of max(d_ap - d_an + margin, 0) with a margin
    (Hermans et al. 2017, arXiv 1703.07737, section 2).

    Args:
        features: features [B, D], not normalised.
        labels: labels [B]; every label occurs at least twice and there are at least two.
    """
    # from differences, as products of features far from zero would cancel; and above 0, for a gradient of the root
    distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").clamp(min=1e-6)
    same = labels[:, None] == labels[None, :]
    farthest_positive = distances.masked_fill(~same, -torch.inf).amax(1)
    nearest_negative = distances.masked_fill(same, torch.inf).amin(1)
    gap = farthest_positive - nearest_negative
    if margin is None:
        return nn.functional.softplus(gap).mean()
    return (gap + margin).clamp(min=0).mean()


class ReidLearner(Learner):
    """Backbone and neck under identity and triplet loss; features are gathered, so mining sees all ranks' batch."""

    layered = "backbone"

    def __init__(self, backbone: Backbone, classes: int, options: ReidOptions):
        super().__init__()
        self.backbone, self.neck = backbone, BNNeck(backbone.dim, classes)
        self.classes, self.options = classes, options

    def prepare(self, batch: Batch, device: torch.device) -> Batch:
        """Return images [B, 3, H, W] and identities [B] on `device`, of a batch of `collate_boxes`."""
        (pixels, boxes, noise), identities = batch
        pixels, noise, identities = (part.to(device, non_blocking=True) for part in (pixels, noise, identities))
        return erased(pixels, boxes, noise), identities

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Map images [B, 3, H, W] and identities [B] of this rank to losses over the batch of all ranks."""
        images, identities = batch
        features = gather_rows(self.backbone.pooled(images).float())
        identities = gather_rows(identities)
        _, logits = self.neck(features)
        options = self.options
        with torch.autocast(features.device.type, enabled=False):
            identity = nn.functional.cross_entropy(logits, identities, label_smoothing=options.label_smoothing)
            triplet = batch_hard_triplet(features, identities, options.margin)
        return {
            "loss": options.identity_weight * identity + options.triplet_weight * triplet,
            "identity_loss": identity,
            "triplet_loss": triplet,
            "accuracy": (logits.detach().argmax(1) == identities).float().mean(),
            "spread": feature_spread(features),
        }

    def encode(self, images: Tensor) -> Tensor:
        """Map images [B, 3, H, W] to the features [B, D] that are ranked, not normalised."""
        features = self.backbone.pooled(images)
        return self.neck(features)[0] if self.options.feature == "after" else features

    def signs(self) -> Signs:
        """Return the identity loss, or the triplet loss where it trains alone, with its level where all features are
        equal.
        """
        if self.options.identity_weight:
            return Signs(statistic="identity_loss", chance=math.log(self.classes), accuracy=1 / self.classes)
        margin = self.options.margin
        return Signs(statistic="triplet_loss", chance=math.log(2) if margin is None else margin)


class Best(nn.Module):
    """The state with the highest validation mAP, the first of several (`--keep best`), as a part of the learner.

    Hence checkpoints have it. It has no parameters or buffers, which DDP would broadcast with every step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, Any] = {"epoch": 0, "mAP": -math.inf, "tensors": {}}

    def get_extra_state(self) -> dict[str, Any]:
        """Return the epoch (1-based; 0 before the first validation), its mAP, and the learner's tensors on the CPU."""
        return self.state

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_extra_state`."""
        self.state = state


def _trained_learner(backbone: Backbone, options: ReidOptions, context: Context) -> ReidLearner:
    """Return the backbone with the neck that was trained on it, in evaluation mode, for scores without training."""
    classifier = read_head(backbone.spec.weights, context.head_digest).get("neck.classifier.weight")
    learner = ReidLearner(backbone, 1 if classifier is None else len(classifier), options)
    load_head(learner, backbone, context)
    learner.to(context.device).eval()
    return learner


def restore(spec: BackboneSpec, options: ReidOptions, context: Context) -> ReidLearner:
    """Return the trained backbone and neck."""
    return _trained_learner(create(spec, img_size=options.size), options, context)


def untrained_learner(spec: BackboneSpec, options: ReidOptions) -> ReidLearner:
    """Return backbone and neck."""
    return ReidLearner(create(spec, img_size=options.size, weights="random", load="strict"), 2, options)


def check(spec: BackboneSpec, dataset: ReidData, options: ReidOptions, context: Context) -> None:
    """Check that there are enough identities for a batch, and that the ranks can share it evenly."""
    check_builds(spec, options.size, drop_path=options.drop_path)
    if not options.epochs:
        return
    if not dataset.train:
        raise UserError(f"{dataset.name}: no training images; use --epochs 0, or set it as --test-dataset")
    identities = len({sample.identity for sample in TASK.training_split(dataset, options, context.seed).train})
    if identities < options.num_identities:
        batch = f"a batch takes --num-identities {options.num_identities}"
        raise UserError(f"{dataset.name}: {identities} training identities, but {batch}")
    of_micro_batch, rest = divmod(options.num_identities, options.grad_accum_steps)
    if rest or of_micro_batch * options.num_instances % context.ranks.world:
        batch = f"{options.num_identities} identities with {options.num_instances} images each"
        shares = f"{options.grad_accum_steps} micro-batches and {context.ranks.world} ranks"
        raise UsageError(f"a batch of {batch} cannot be shared evenly by {shares}")
    if of_micro_batch < 2 and options.triplet_weight:
        fix = f"set --grad-accum-steps to {options.num_identities // 2} at most, or --triplet-weight 0"
        raise UsageError(f"--grad-accum-steps {options.grad_accum_steps}: one identity has no triplets; {fix}")


def run(spec: BackboneSpec, dataset: ReidData, options: ReidOptions, context: Context) -> Result:
    """Train on the training split and rank the query split against the gallery."""
    images = options.num_identities // options.grad_accum_steps * options.num_instances // context.ranks.world
    drop_path = options.drop_path if options.epochs else 0.0
    backbone = noted_backbone(spec, options, context, images=images, drop_path=drop_path)
    if options.epochs:
        learner = _train(backbone, dataset, options, context)
        if context.outcome.nonfinite:
            return {}, {}
    else:
        learner = _trained_learner(backbone, options, context)
    if dataset.joined:
        export_trained(learner, learner.backbone, context)
        context.note(f"trained on {len(dataset.joined)} datasets; each is evaluated in a record of its own")
        return {}, {}
    start = time.monotonic()
    ranking = _rank(learner, dataset, options, context)
    context.cost.eval_seconds += time.monotonic() - start
    if ranking.degenerate:
        raise NotVaried("degenerate ranking: every query is equally far from its whole gallery")
    if options.epochs:
        export_trained(learner, learner.backbone, context)
    if lacking := len(dataset.query) - len(matched_queries(dataset.query, dataset.gallery)):
        context.note(f"{lacking} of {len(dataset.query)} queries have no match in the gallery; the others are scored")
    if context.folder and context.ranks.first:
        _ranked_lists(ranking, dataset).save(context.folder / RANKED)
    outcomes = ranking.outcomes() | {
        "sample": np.array([dataset.name_of(sample) for sample in dataset.query]),
        "cluster": np.array([sample.identity for sample in dataset.query]),
    }
    return rescore(outcomes), outcomes


def _train(backbone: Backbone, dataset: ReidData, options: ReidOptions, context: Context) -> ReidLearner:
    """Train on the training split, without the identities that are validated on, and return the state that is kept."""
    data = TASK.training_split(dataset, options, context.seed)
    learner = ReidLearner(backbone, len({sample.identity for sample in data.train}), options)
    loader = train_loader(data.files(data.train), backbone, options, context)
    if not options.validate_at:
        fit(learner, loader, options, context)
        return learner
    learner.best = best = Best()

    def validate(epoch: int) -> Scores:
        if epoch + 1 not in options.validate_at:
            return {}
        learner.eval()
        scores = _rank(learner, data, options, context).scores()
        if options.keep == "best" and scores["mAP"] > best.state["mAP"]:
            tensors = {name: value for name, value in learner.state_dict().items() if isinstance(value, Tensor)}
            copies = {name: value.detach().cpu().clone() for name, value in tensors.items()}
            best.state = {"epoch": epoch + 1, "mAP": scores["mAP"], "tensors": copies}
        return scores

    if fit(learner, loader, options, context, validate).nonfinite:
        return learner
    learner.load_state_dict(best.state["tensors"], strict=False)  # none if the last state is kept
    people, epoch = len({sample.identity for sample in data.query}), best.state["epoch"] or options.last_epoch
    context.details["validation"] = {"identities": people, "kept_epoch": epoch}
    context.note(f"{people} training identities were validated on, not trained on; kept: epoch {epoch}")
    return learner


def _rank(learner: ReidLearner, dataset: ReidData, options: ReidOptions, context: Context) -> Ranking:
    """Return the ranking of the gallery for the queries, the same on every rank.

    Raises:
        NotFinite: a feature is not finite; the image is named.
    """
    ranked, identities, cameras = list[Tensor](), list[Array](), list[Array]()
    for split, samples in {"query": dataset.query, "gallery": dataset.gallery}.items():
        ranked.append(features(learner, dataset.files(samples), options, context, f"{split} features"))
        check_finite(ranked[-1], [dataset.name_of(sample) for sample in samples], f"features of the {split} split")
        identities.append(np.array([sample.identity for sample in samples]))
        cameras.append(np.array([sample.camera for sample in samples]))

    def ranking() -> Ranking:
        query, gallery = on_device(ranked, context.device, copies=6)  # in float64, in halves, and centred
        if not options.rerank:
            return rank(query, gallery, *identities, *cameras, ap=options.ap, keep=SHOWN_PLACES)
        k1, k2, weight = options.rerank_k1, options.rerank_k2, options.rerank_lambda
        distances = rerank(query, gallery, k1=k1, k2=k2, lambda_value=weight)
        return rank_distances(distances, *identities, *cameras, ap=options.ap, keep=SHOWN_PLACES, device=query.device)

    return by_first(ranking)


def rescore(outcomes: Outcomes) -> Scores:
    """Compute mAP, CMC at 1, 5, 10 and mINP from per-query outcomes."""
    return Ranking.from_outcomes(outcomes).scores()


def _ranked_lists(ranking: Ranking, dataset: ReidData) -> RankedLists:
    """Return the first places, with camera -1 where there are none."""
    assert ranking.nearest is not None
    assert ranking.nearest_distances is not None

    def rows(samples: Sequence[Sample]) -> list[tuple[str, int, int]]:
        cameras = [sample.camera if dataset.cameras else -1 for sample in samples]
        return [(dataset.name_of(sample), sample.identity, camera) for sample, camera in zip(samples, cameras)]

    query, gallery = rows(dataset.query), rows(dataset.gallery)
    return RankedLists.from_ranking(ranking.nearest, query, gallery, ranking.nearest_distances)


def train_loader(files: FileSplit, backbone: Backbone, options: ReidOptions, context: Context) -> RunLoader:
    """Return a loader of P x K batches of augmented images for `collate_boxes`, each read by its path."""
    mean, std = backbone.mean.flatten().tolist(), backbone.std.flatten().tolist()
    transform = reid_train_transform(options, mean, std)
    files.read_channels(backbone.spec.in_chans)
    images, identities = SplitDataset(files, transform, seed=context.seed, preload=False), files.labels.tolist()
    batches = partial(pk_batches, identities, p=options.num_identities, k=options.num_instances, seed=context.seed)
    parts, epochs = options.grad_accum_steps, options.epochs
    return context.loader(images, batches, parts=parts, collate=collate_boxes, epochs=epochs)


def features(
    learner: ReidLearner, files: FileSplit, options: ReidOptions, context: Context, label: str = "features"
) -> Tensor:
    """Return the L2-normalised features [M, D] of the files, as ranked."""

    def encode(images: Tensor) -> Tensor:
        encoded = learner.encode(images)
        return encoded + learner.encode(images.flip(-1)) if options.flip_test else encoded

    files.read_channels(learner.backbone.spec.in_chans)
    return nn.functional.normalize(extract_view(encode, files, options, context, label, preload=False), dim=1)
