"""Linear classification on frozen features, as DINO evaluates backbones (arXiv 2104.14294, section 4.1).

Its values are in `configs/tasks/linear.yaml`. Shapes: B images, N validation images, M held-out training images,
T tokens, D channels, F channels of the features, C classes.
"""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import accuracies, extract_view, image_outcomes, named_scores, true_class_ranks
from backbones.pretrain.supervised.losses import constant_loss
from backbones.spec import BackboneSpec
from backbones.trained_weights import check_head, export_frozen, read_frozen_head, read_head
from tasks.labelled_images import check_classes, frozen_backbone
from tasks.linear.task import LinearOptions
from transfer.core.errors import UsageError, UserError, shortened
from transfer.data.classification import ClassificationData, Split, balanced_weights
from transfer.data.loading.augment import train_transform
from transfer.data.loading.loader import RunLoader
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.engine.dist import broadcast_object
from transfer.engine.extract import Encode, check_finite, check_varied, raise_if_broken
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.loop import fit
from transfer.engine.optim import freeze_others
from transfer.engine.options import FitOptions
from transfer.engine.outcome import Signs
from transfer.task import Array, Outcomes, Result, Scores

CLASSIFIED_ROWS = 8192  # validation features that are classified at a time


class LinearLearner(Learner):
    """A linear classifier on frozen features; the backbone behind `encode` is not a part of it.

    Attributes:
        last: ranks and ties [N, 2] of the validation images' true classes at the last validation.
        best: ranks and ties at the validation with the highest top-1, the first of several.
        best_head: weight and bias at that validation.

    Args:
        encode: images [B, 3, H, W] -> features [B, F].
        dim: F.
        train_labels: of all training images.
        classes: C.
        balanced: whether all classes count the same in the loss.
    """

    backbone: Backbone

    def __init__(self, encode: Encode, dim: int, train_labels: Array, classes: int, balanced: bool = False) -> None:
        super().__init__()
        self.encode = encode
        self.head = nn.Linear(dim, classes)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        counts = np.bincount(train_labels, minlength=classes)
        weights = balanced_weights(counts) if balanced else np.ones(classes)
        self.weights = nn.Buffer(torch.from_numpy(weights).float(), persistent=False) if balanced else None
        shares = counts / len(train_labels)
        entropy = constant_loss(torch.from_numpy(shares * weights), sigmoid=False)
        self.constant_signs = Signs(chance=entropy, accuracy=float(shares.max()))
        self.last, self.best = torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int64)
        self.best_head: dict[str, Tensor] = {}

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the cross-entropy of this rank's batch (images [B, 3, H, W], labels [B])."""
        images, labels = batch
        with torch.no_grad():
            features = self.encode(images).float()
        with torch.autocast(features.device.type, enabled=False):
            logits = self.head(features)
            if self.weights is None:
                loss = nn.functional.cross_entropy(logits, labels)
            else:  # a mean over images: a batch's own sum of weights would differ between ranks
                loss = nn.functional.cross_entropy(logits, labels, self.weights, reduction="none").mean()
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        return {"loss": loss, "accuracy": accuracy, "spread": feature_spread(features)}

    def signs(self) -> Signs:
        """Return loss and accuracy under a constant prediction: entropy and commonest share of the training labels."""
        return self.constant_signs

    def validate(self, features: Tensor, labels: Tensor, device: torch.device) -> Scores:
        """Classify validation features [N, F], and keep the result."""
        return self.keep(classify(self.head, features, labels, device))

    def keep(self, ranks: Tensor) -> Scores:
        """Store the ranks and ties [N, 2] of a validation, -1 where a logit is not finite; return its scores."""
        self.last = ranks
        if (ranks < 0).any():
            return {}
        scores = scores_of(ranks)
        if not len(self.best) or scores["top1"] > scores_of(self.best)["top1"]:
            self.best, self.best_head = ranks, self._head()
        return scores

    def outcomes(self) -> Outcomes:
        """Return `rank` and `ties` [N] of the last validation, and `best_rank` and `best_ties` of the best one."""
        last, best = self.last.numpy().T, self.best.numpy().T
        return {"rank": last[0], "ties": last[1], "best_rank": best[0], "best_ties": best[1]}

    def heads(self) -> dict[str, Tensor]:
        """Return the current classifier under `head.`, and the one of the best validation under `best.`."""
        last = {f"head.{name}": tensor for name, tensor in self._head().items()}
        return last | {f"best.{name}": tensor for name, tensor in self.best_head.items()}

    def _head(self) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self.head.state_dict().items()}

    # A part of the saved state, but no buffers, which DDP would broadcast with every step.
    def get_extra_state(self) -> dict[str, Tensor]:
        """Return the state of earlier validations that a resumed run needs."""
        return {"last": self.last, "best": self.best, **{f"best_{name}": x for name, x in self.best_head.items()}}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore a state of `get_extra_state`."""
        self.last, self.best = state["last"], state["best"]
        self.best_head = {name: state[f"best_{name}"] for name in ("weight", "bias") if f"best_{name}" in state}


class RateGrid(Learner):
    """Copies of one linear classifier, each with its own learning rate, trained in one pass over the images.

    DINOv2 trains a grid of 13 rates this way (facebookresearch/dinov2, dinov2/eval/linear.py: 1e-5, 2e-5, ... 0.1, each
    times images per step / 256, under SGD and the sum of the heads' losses) and takes the best by its validation set.
    Here the best is taken by held-out training images, and all heads begin with the same values. Rates are used as
    given. The loss is a sum, so that a head's gradient is that of its own loss: it trains as it would alone.

    A head whose parameters overflow is lost: they are 0 from then on, and have no part in loss and choice. If all are
    lost, the last one keeps its parameters, which end the training as `nonfinite`.
    """

    def __init__(self, first: LinearLearner, rates: Sequence[float]) -> None:
        super().__init__()
        self.encode, self.rates = first.encode, rates
        first.encode = nn.Identity()  # the heads get features
        self.heads: Sequence[LinearLearner] = nn.ModuleList(copy.deepcopy(first) for _ in rates)  # type: ignore[assignment]
        self.lost = nn.Buffer(torch.zeros(len(rates), dtype=torch.bool))

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the sum of the heads' losses on this rank's batch, and the numbers of the head with the lowest one."""
        images, labels = batch
        with torch.no_grad():
            features = self.encode(images)
        results = [head((features, labels), step) for head in self.heads]
        stats = {name: torch.stack([*map(itemgetter(name), results)]) for name in results[0]}
        losses = stats.pop("loss")
        compared = losses.detach().masked_fill(self.lost, math.inf)
        best = compared.argmin()
        best_stats = {name: values.take(best) for name, values in stats.items()}  # an index would wait for the GPU
        return {"loss": losses.masked_fill(self.lost, 0).sum(), "best_loss": compared.take(best), **best_stats}

    def after_step(self, step: int) -> None:
        """Set the parameters of the heads that are lost with this step or before to 0, unless all are."""
        norms = torch.stack(torch._foreach_norm([*self.heads.parameters()]))  # type: ignore[attr-defined]
        self.lost.logical_or_(~norms.view(len(self.heads), -1).isfinite().all(1))
        for head, lost in zip(self.heads, self.lost & ~self.lost.all()):
            for parameter in head.parameters():
                parameter.data.masked_fill_(lost, 0)

    def parameter_groups(self, options: FitOptions) -> list[dict[str, Any]]:
        """Return the groups of each head, with its rate."""
        groups = list[dict[str, Any]]()
        for rate, head in zip(self.rates, self.heads):
            groups += head.parameter_groups(replace(options, lr=rate))
        return groups

    def signs(self) -> Signs:
        """Return those of one classifier, of the lowest loss: a rate that is too large is no failure of the others."""
        return replace(self.heads[0].signs(), statistic="best_loss")

    def validate(self, features: Tensor, labels: Tensor, device: torch.device) -> Scores:
        """Classify validation features [N, F] by each head, and keep the results; return the top-1 of each rate."""
        heads = zip(self.rates, self.heads, self.lost.tolist())
        scores = {rate: head.validate(features, labels, device) for rate, head, lost in heads if not lost}
        return {f"top1_lr{rate:g}": score["top1"] for rate, score in scores.items() if score}

    def choose(self, features: Tensor, labels: Tensor, context: Context) -> LinearLearner:
        """Return the head with the best top-1 on held-out features [M, F], the first of several; the record has all,
        with the lost ones as `nonfinite`.
        """
        rows: list[dict[str, Any]] = []
        for rate, head, lost in zip(self.rates, self.heads, self.lost.tolist()):
            if lost:
                rows.append({"lr": rate, "status": "nonfinite"})
                continue
            top1 = scores_of(classify(head.head, features, labels, context.device))["top1"]
            rows.append({"lr": rate, "selection_top1": top1, **accuracies(head.outcomes())})
        best = max(range(len(rows)), key=lambda index: rows[index].get("selection_top1", -1))
        failed = [f"{row['lr']:g}" for row in rows if "status" in row]
        context.details["lrs"] = {"chosen": self.rates[best], "rates": rows}
        among = f"{len(rows) - len(failed)} by {len(labels)} held-out training images"
        context.note(f"learning rate {self.rates[best]:g}, chosen among {among}")
        if failed:
            context.note(f"{len(failed)} of {len(rows)} learning rates failed (nonfinite): {shortened(failed)}")
        return self.heads[best]


def held_out(labels: Array, share: float, seed: int) -> Array:
    """Return the indices of a share of each class's images, at least one of two or more, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return np.sort(np.concatenate([part[: min(max(1, round(share * len(part))), len(part) - 1)] for part in parts]))


@torch.no_grad()
def classify(head: nn.Linear, features: Tensor, labels: Tensor, device: torch.device) -> Tensor:
    """Return the ranks and ties [N, 2] of the true classes (see `true_class_ranks`) of features [N, F], labels [N]; the
    same on every rank.
    """
    rows = zip(features.split(CLASSIFIED_ROWS), labels.split(CLASSIFIED_ROWS))
    return broadcast_object(torch.cat([true_class_ranks(head(x.to(device)), y.to(device)).cpu() for x, y in rows]))


def scores_of(ranks: Tensor) -> Scores:
    """Return top-1 and top-5 from ranks and ties [N, 2]."""
    return accuracies({"rank": ranks[:, 0].numpy(), "ties": ranks[:, 1].numpy()})


def make_encoder(backbone: Backbone, blocks: int, avgpool: bool, context: Context) -> tuple[Encode, int]:
    """Return a function from images [B, 3, H, W] to features [B, F], and F = D (blocks + avgpool).

    Tokens of each of the last blocks are pooled as at the end of the model: the class token after the final norm, or
    the mean over the tokens if the model pools by the mean. Other models than plain vision transformers give their
    pooled features only, as in DINO's own evaluation; the record notes it.
    """
    if not isinstance(backbone.model, VisionTransformer):
        context.note(f"{backbone.spec.arch} is not a plain ViT: linear uses its pooled features only")
        return backbone.pooled, backbone.dim
    if backbone.spec.pool not in (None, "cls") or backbone.model.global_pool != "token":
        context.note(f"{backbone.spec.name} pools by the mean: so do the features of each block")

    def encode(images: Tensor) -> Tensor:
        entries = backbone.tokens(images, norm=True)[-blocks:]
        features = [backbone.model.forward_head(entry, pre_logits=True) for entry in entries]
        if avgpool:
            features.append(entries[-1][:, backbone.model.num_prefix_tokens :].mean(1))
        return torch.cat(features, dim=1)

    return encode, backbone.dim * blocks + backbone.model.embed_dim * avgpool


def hold_back(data: ClassificationData, options: LinearOptions, seed: int) -> tuple[ClassificationData, Split | None]:
    """Return the data without the training images that choose among `--lrs`, and these; without `--lrs` all data."""
    if not (options.lrs and options.epochs):
        return data, None
    selection = held_out(data.training.labels, options.selection_share, seed)
    rest = np.setdiff1d(np.arange(len(data.training)), selection)
    return replace(data, train=data.training.select(rest)), data.training.select(selection)


def untrained_learner(spec: BackboneSpec, options: LinearOptions) -> LinearLearner | RateGrid:
    """Return the classifier, or those of several rates, alone: the backbone is frozen."""
    return _for_rates(LinearLearner(nn.Identity(), 1, np.arange(2), 2), options)


def _for_rates(learner: LinearLearner, options: LinearOptions) -> LinearLearner | RateGrid:
    return RateGrid(learner, options.lrs) if options.lrs and options.epochs else learner


def check(spec: BackboneSpec, dataset: ClassificationData, options: LinearOptions, context: Context) -> None:
    """Check classes, the backbone's features, the number of images in a batch for the ranks, and the learner."""
    check_classes(dataset)
    backbone = create(spec, img_size=options.size, weights="random", load="strict")
    if isinstance(backbone.model, VisionTransformer) and options.n_last_blocks > backbone.depth:
        raise UsageError(f"--n-last-blocks {options.n_last_blocks}: backbone {spec.name} has {backbone.depth}")
    if options.avgpool and not isinstance(backbone.model, VisionTransformer):
        raise UsageError(f"--avgpool: backbone {spec.name} ({spec.arch}) is not a plain ViT; use --no-avgpool")
    dataset, _ = hold_back(dataset, options, context.seed)
    images = len(dataset.training)
    if not options.epochs:
        check_head(spec, "linear")
    elif images < options.batch_size:
        raise UserError(f"{dataset.name}: {images} training images, a step takes --batch-size {options.batch_size}")
    context.micro_batch(options.batch_size, options.grad_accum_steps)
    freeze_others(untrained_learner(spec, options), options.trainable)


def run(spec: BackboneSpec, dataset: ClassificationData, options: LinearOptions, context: Context) -> Result:
    """Train the classifier on the training split; validate on features that are extracted once."""
    backbone = frozen_backbone(spec, options, context)
    encode, dim = make_encoder(backbone, options.n_last_blocks, options.avgpool, context)
    dataset, selection = hold_back(dataset, options, context.seed)
    balanced = options.class_weights == "balanced"
    first = LinearLearner(encode, dim, dataset.training.labels, len(dataset.classes), balanced)
    learner = _for_rates(first, options)
    start = time.monotonic()
    val_features = features(learner, dataset.validation, options, context)
    check_finite(val_features, dataset.validation.names, "features of the val split")
    check_varied(val_features, context.eval_precision, "validation")
    seconds, labels = time.monotonic() - start, torch.from_numpy(dataset.validation.labels)

    def validate(epoch: int) -> Scores:
        if (epoch + 1) % options.validate_every and epoch + 1 < options.last_epoch:
            return {}
        return learner.validate(val_features, labels, context.device)

    if options.epochs:
        loader = train_loader(dataset, backbone, options, context)
        fit(learner, loader, replace(options, lr=max(options.lrs, default=options.lr)), context, validate)
    else:
        _classify_by_trained_heads(first, spec.weights, dataset, val_features, context)
    context.cost.eval_seconds += seconds
    if context.outcome.nonfinite:
        return {}, {}
    if context.outcome.training_failed:  # it may have ended before a validation
        learner.validate(val_features, labels, context.device)
    if isinstance(learner, RateGrid):
        assert selection is not None
        start = time.monotonic()
        selection_features = features(learner, selection, options, context)
        learner = learner.choose(selection_features, torch.from_numpy(selection.labels), context)
        context.cost.eval_seconds += time.monotonic() - start
    raise_if_broken(learner.last[:, 0] < 0, dataset.validation.names, "logits of the val split")
    if options.epochs:
        export_frozen(backbone, learner.heads(), context, classes=list(dataset.classes))
    outcomes = image_outcomes(dataset.validation) | learner.outcomes()
    return accuracies(outcomes), outcomes


def restore(spec: BackboneSpec, options: LinearOptions, context: Context) -> LinearLearner:
    """Return the classifier of the last epoch with the backbone that it was trained on."""
    head, backbone = read_head(spec.weights, context.head_digest), create(spec, img_size=options.size)
    encode, dim = make_encoder(backbone, options.n_last_blocks, options.avgpool, context)
    classes = len(head["head.weight"])
    learner = LinearLearner(encode, dim, np.arange(classes), classes)
    learner.head.load_state_dict({key: head[f"head.{key}"] for key in ("weight", "bias")})
    learner.backbone = backbone
    return learner


def features(model: LinearLearner | RateGrid, images: Split, options: LinearOptions, context: Context) -> Tensor:
    """Return the features [M, F] that are classified."""
    return extract_view(model.encode, images, options, context, f"{images.name} features")


@torch.no_grad()
def predict(model: LinearLearner, images: Split, options: LinearOptions, context: Context) -> Outcomes:
    """Classify images as the last validation does."""
    rows = features(model, images, options, context).split(CLASSIFIED_ROWS)
    logits = torch.cat([model.head(x.to(context.device)).cpu() for x in rows])
    return named_scores(logits, model.backbone)


def _classify_by_trained_heads(
    learner: LinearLearner, weights: str, data: ClassificationData, features: Tensor, context: Context
) -> None:
    """Validate the heads that a run left, for scores without training. Raises UserError when they do not fit."""
    head = read_frozen_head(weights, data.classes, {"head.weight": learner.head.weight}, context)
    labels = torch.from_numpy(data.validation.labels)
    for name in ("best", "head"):  # the last validation is that of the head at the end
        learner.head.load_state_dict({key: head[f"{name}.{key}"] for key in ("weight", "bias")})
        learner.to(context.device).eval()
        learner.validate(features, labels, context.device)


def train_loader(data: ClassificationData, backbone: Backbone, options: LinearOptions, context: Context) -> RunLoader:
    """Return a loader of shuffled batches of randomly cropped and flipped images, without an incomplete last batch."""
    mean, std = backbone.spec.mean or (), backbone.spec.std or ()  # which a built backbone knows
    transform = train_transform(options.size, options.augmentation(), mean, std)
    return context.shuffled(SplitDataset(data.training, transform, seed=context.seed), options)
