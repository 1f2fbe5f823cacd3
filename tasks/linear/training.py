"""Linear classification on frozen features, as DINO evaluates backbones (arXiv 2104.14294, section 4.1).

Its values are in `configs/tasks/linear.yaml`. Shapes: B images, N validation images, T tokens, D channels,
F channels of the features, C classes.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import accuracies, image_outcomes, named_scores, true_class_ranks
from backbones.pretrain.supervised.losses import constant_loss
from backbones.spec import BackboneSpec
from backbones.trained_weights import check_head, export_frozen, read_head
from tasks.labelled_images import check_classes, frozen_backbone
from tasks.linear.task import LinearOptions
from transfer.core.errors import UsageError, UserError
from transfer.core.exports import export_folder, pretraining_facts, weights_facts
from transfer.data.classification import ClassificationData, Split, balanced_weights
from transfer.data.loading.augment import eval_transform, train_transform
from transfer.data.loading.loader import RunLoader, shuffled_batches
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.engine.dist import broadcast_object
from transfer.engine.extract import check_finite, check_varied, extract, raise_if_broken
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.loop import fit
from transfer.engine.optim import freeze_others
from transfer.engine.outcome import Signs
from transfer.task import Outcomes, Result, Scores

ROWS = 8192  # validation features that are classified at a time


class LinearLearner(Learner):
    """A linear classifier on frozen features; the backbone behind `encode` is not a part of it.

    Attributes:
        last: ranks and ties [N, 2] of the validation images' true classes at the last validation.
        best: ranks and ties at the validation with the highest top-1, the first of several.
        best_head: weight and bias at that validation.
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        dim: int,
        train_labels: NDArray[Any],
        classes: int,
        class_weights: str = "none",
    ) -> None:
        super().__init__()
        self.encode = encode
        self.head = nn.Linear(dim, classes)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        shares = np.bincount(train_labels) / len(train_labels)
        self.commonest = float(shares.max())
        self.weights: Tensor | None = None
        if class_weights == "balanced":
            weights = balanced_weights(np.bincount(train_labels, minlength=classes))
            self.weights, shares = torch.from_numpy(weights).float(), shares * weights[: len(shares)]
        self.entropy = constant_loss(torch.from_numpy(shares), sigmoid=False)
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
                weights = self.weights.to(labels.device)
                loss = nn.functional.cross_entropy(logits, labels, weights, reduction="none").mean()
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        return {"loss": loss, "accuracy": accuracy, "spread": feature_spread(features)}

    def signs(self) -> Signs:
        """Return loss and accuracy under a constant prediction: entropy and commonest share of the training labels."""
        return Signs(chance=self.entropy, accuracy=self.commonest)

    def keep(self, ranks: Tensor) -> Scores:
        """Store the ranks and ties [N, 2] of a validation, -1 where a logit is not finite; return its scores."""
        self.last = ranks
        if (ranks < 0).any():
            return {}
        scores = _scores(ranks)
        if not len(self.best) or scores["top1"] > _scores(self.best)["top1"]:
            self.best, self.best_head = ranks, self._head()
        return scores

    def heads(self) -> dict[str, Tensor]:
        """Return the current classifier under `head.`, and the one of the best validation under `best.`."""
        named = {"head": self._head(), "best": self.best_head}
        return {f"{name}.{key}": tensor for name, head in named.items() for key, tensor in head.items()}

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


def make_encoder(
    backbone: Backbone, blocks: int, avgpool: bool, context: Context
) -> tuple[Callable[[Tensor], Tensor], int]:
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


@torch.no_grad()
def classify(head: nn.Linear, features: Tensor, labels: Tensor, device: torch.device) -> Tensor:
    """Return the ranks and ties [N, 2] of the true classes (see `true_class_ranks`) of features [N, F], labels [N]."""
    rows = zip(features.split(ROWS), labels.split(ROWS))
    return torch.cat([true_class_ranks(head(x.to(device)), y.to(device)).cpu() for x, y in rows])


def _scores(ranks: Tensor) -> Scores:
    return accuracies({"rank": ranks[:, 0].numpy(), "ties": ranks[:, 1].numpy()})


def untrained_learner(spec: BackboneSpec, options: LinearOptions) -> LinearLearner:
    """Return the classifier alone: the backbone is frozen."""
    return LinearLearner(torch.flatten, 1, np.arange(2), 2)


def check(spec: BackboneSpec, dataset: ClassificationData, options: LinearOptions, context: Context) -> None:
    """Check classes, the backbone's features, the number of images in a batch for the ranks, and the learner."""
    check_classes(dataset)
    backbone = create(spec, img_size=options.size, weights="random", load="strict")
    if isinstance(backbone.model, VisionTransformer) and options.n_last_blocks > backbone.depth:
        raise UsageError(f"--n-last-blocks {options.n_last_blocks}: backbone {spec.name} has {backbone.depth}")
    if options.avgpool and not isinstance(backbone.model, VisionTransformer):
        raise UsageError(f"--avgpool: backbone {spec.name} ({spec.arch}) is not a plain ViT; use --no-avgpool")
    if not options.epochs:
        check_head(spec, "linear")
    elif len(dataset.training) < options.batch_size:
        raise UserError(
            f"{dataset.name}: {len(dataset.training)} training images, a step takes --batch-size {options.batch_size}"
        )
    context.micro_batch(options.batch_size, options.grad_accum_steps)
    learner = LinearLearner(backbone.pooled, 1, dataset.training.labels, len(dataset.classes))
    freeze_others(learner, options.trainable)


def run(spec: BackboneSpec, dataset: ClassificationData, options: LinearOptions, context: Context) -> Result:
    """Train the classifier on the training split; validate on features that are extracted once."""
    backbone = frozen_backbone(spec, options, context)
    encode, dim = make_encoder(backbone, options.n_last_blocks, options.avgpool, context)
    learner = LinearLearner(encode, dim, dataset.training.labels, len(dataset.classes), options.class_weights)
    start = time.monotonic()
    view = SplitDataset(dataset.validation, eval_transform(options.size, options.resize))
    features = extract(encode, view, context, batch_size=options.eval_batch_size, label="validation features")
    check_finite(features, dataset.validation.names, "features of the val split")
    check_varied(features, context.eval_precision, "validation")
    seconds, labels = time.monotonic() - start, torch.from_numpy(dataset.validation.labels)

    def validate(epoch: int) -> Scores:
        if (epoch + 1) % options.validate_every and epoch + 1 < options.epochs:
            return {}
        return learner.keep(broadcast_object(classify(learner.head, features, labels, context.device)))

    if options.epochs:
        fit(learner, train_loader(dataset, backbone, options, context), options, context, validate)
    else:
        _classify_by_trained_heads(learner, spec.weights, dataset, features, context)
    context.cost.eval_seconds += seconds
    if context.outcome.training_failed:
        return {}, {}
    raise_if_broken(learner.last[:, 0] < 0, dataset.validation.names, "logits of the val split")
    if options.epochs:
        export_frozen(backbone, learner.heads(), context, classes=list(dataset.classes))
    ranks = {"rank": learner.last[:, 0], "ties": learner.last[:, 1]}
    ranks |= {"best_rank": learner.best[:, 0], "best_ties": learner.best[:, 1]}
    outcomes = image_outcomes(dataset.validation) | {name: column.numpy() for name, column in ranks.items()}
    return rescore(outcomes), outcomes


class Classifier(nn.Module):
    """The frozen backbone and the classifier of the last epoch: images [B, 3, H, W] -> logits [B, C]."""

    def __init__(self, backbone: Backbone, options: LinearOptions, context: Context) -> None:
        super().__init__()
        head = read_head(backbone.spec.weights, context.head_digest)
        self.backbone, self.head = backbone, nn.Linear(*head["head.weight"].shape[::-1])
        self.head.load_state_dict({key: head[f"head.{key}"] for key in ("weight", "bias")})
        self.encode, _ = make_encoder(backbone, options.n_last_blocks, options.avgpool, context)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.encode(images).float())


def restore(spec: BackboneSpec, options: LinearOptions, context: Context) -> Classifier:
    """Return the backbone with the classifier that was trained on it."""
    return Classifier(create(spec, img_size=options.size), options, context)


def features(model: Classifier, images: Split, options: LinearOptions, context: Context) -> Tensor:
    """Return the features [M, F] that are classified."""
    view = SplitDataset(images, eval_transform(options.size, options.resize))
    return extract(model.encode, view, context, batch_size=options.eval_batch_size, label="features")


@torch.no_grad()
def predict(model: Classifier, images: Split, options: LinearOptions, context: Context) -> Outcomes:
    """Classify images as the last validation does."""
    rows = features(model, images, options, context).split(ROWS)
    logits = torch.cat([model.head(x.to(context.device)).cpu() for x in rows])
    return named_scores(logits, weights_facts(model.backbone.spec.weights))


def _classify_by_trained_heads(
    learner: LinearLearner, weights: str, data: ClassificationData, features: Tensor, context: Context
) -> None:
    """Validate the heads that a run left, for scores without training. Raises UserError when they do not fit."""
    trained = pretraining_facts(export_folder(weights) or Path(weights)).get("classes")
    if trained != list(data.classes):
        raise UserError(f"{weights}: the heads were trained for other classes than those of {data.name}")
    head, labels = read_head(weights, context.head_digest), torch.from_numpy(data.validation.labels)
    for name in ("best", "head"):  # the last validation is that of the head at the end
        state = {key: head[f"{name}.{key}"] for key in ("weight", "bias")}
        if state["weight"].shape != learner.head.weight.shape:
            fix = "use the --n-last-blocks and --avgpool of their run"
            raise UserError(f"{weights}: the heads were trained on other features; {fix}")
        learner.head.load_state_dict(state)
        learner.to(context.device).eval()
        learner.keep(broadcast_object(classify(learner.head, features, labels, context.device)))


def rescore(outcomes: Outcomes) -> Scores:
    """Compute top1 and top5 of the last epoch, and top1 of the best epoch."""
    best = accuracies({"rank": outcomes["best_rank"], "ties": outcomes["best_ties"]})
    return {**accuracies(outcomes), "best_top1": best["top1"]}


def train_loader(
    dataset: ClassificationData, backbone: Backbone, options: LinearOptions, context: Context
) -> RunLoader:
    """Return a loader of shuffled batches of randomly cropped and flipped images, without an incomplete last batch."""
    train = dataset.training
    mean, std = backbone.spec.mean, backbone.spec.std
    assert mean, "a built backbone knows its pixel statistics"
    assert std
    augmentation = options.augmentation(crop_area=options.crop_area, flip=options.flip)
    images = SplitDataset(train, train_transform(options.size, augmentation, mean, std), seed=context.seed)
    batches = partial(shuffled_batches, len(train), options.batch_size, seed=context.seed)
    return context.loader(images, batches, parts=options.grad_accum_steps)
