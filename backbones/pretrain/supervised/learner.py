"""A backbone with a classifier under the loss of a supervised recipe, and the moving average of its weights.

Shapes: B images, C classes, K classes kept by a label map, h x w its places.
"""

import math
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.pretrain.supervised import losses
from backbones.pretrain.supervised.method import SupervisedOptions
from backbones.pretrain.supervised.token_labels import crop_targets
from backbones.token_shards import Shards
from backbones.vit import share_tokens
from transfer.core.errors import UserError
from transfer.data.classification import balanced_weights
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.optim import parameter_groups
from transfer.engine.options import FitOptions
from transfer.engine.outcome import Signs


class SupervisedLearner(Learner):
    """A backbone with a classifier under the loss of a recipe.

    Args:
        backbone: with a classifier of C outputs.
        prior: [C], the share of each class among the training images.
        options: the options of the recipe.
        seed: the seed of the run, for what is drawn alike on all ranks.
    """

    def __init__(self, backbone: Backbone, prior: Tensor, options: SupervisedOptions, seed: int):
        super().__init__()
        self.backbone, self.options, self.seed = backbone, options, seed
        self.classes = len(prior)
        self.prior = prior
        balanced = options.class_weights == "balanced"
        weights = torch.from_numpy(balanced_weights(prior.numpy())).float() if balanced else None
        self.weights = None if weights is None else nn.Buffer(weights, persistent=False)
        head = classifier(backbone)
        bias = getattr(head, "bias", None)
        if isinstance(bias, Tensor):
            nn.init.constant_(bias, options.head_bias)
        # DeiT's average. It moves by 1 - decay of the difference: decay and 1 - decay in float32 do not sum to 1
        self.average = None if options.ema is None else ModelEmaV3(backbone, options.ema).requires_grad_(False)
        self.features = torch.empty(0)
        head.register_forward_pre_hook(self._keep_features)

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the loss of this rank's (images [B, 3, H, W], labels [B]).

        With token labels the images come as (images, boxes [B, 5]), and the maps [B, 2, K, h, w] after the labels.
        """
        images, labels, *maps = batch
        images, boxes = images if maps else (images, None)
        if self.options.dense_weight:
            return self._dense(images, labels, boxes, *maps)
        images, targets = self._mixed(images, labels, step)
        logits = self.backbone.logits(images)
        with torch.autocast(images.device.type, enabled=False):
            compare = (
                losses.sigmoid_cross_entropy if self.options.loss == "sigmoid" else losses.soft_target_cross_entropy
            )
            spread = feature_spread(self.features.flatten(1))
            loss = compare(logits, self._weighted(targets))
            return {"loss": loss, "accuracy": _accuracy(logits, targets), "spread": spread}

    def _dense(
        self, images: Tensor, labels: Tensor, boxes: Tensor | None, maps: Tensor | None = None
    ) -> dict[str, Tensor]:
        class_logits, token_logits, box = self.backbone.dense_logits(images)
        with torch.autocast(images.device.type, enabled=False):
            if maps is None or boxes is None:
                targets, token_targets = self._mixed(images, labels, 0)[1], None
            else:
                side = math.isqrt(token_logits.shape[1])
                targets, token_targets = crop_targets(maps, boxes, self.classes, (side, side))
            token_targets = None if token_targets is None else self._weighted(token_targets)
            class_loss, token_loss = losses.token_label_losses(
                class_logits, token_logits, box, self._weighted(targets), token_targets
            )
            loss = class_loss + self.options.dense_weight * token_loss
            spread = feature_spread(self.features.flatten(1))
            parts = {"loss": loss, "class_loss": class_loss, "token_loss": token_loss}
            return {**parts, "accuracy": _accuracy(class_logits, targets), "spread": spread}

    def _weighted(self, targets: Tensor) -> Tensor:
        """Return targets [..., C] times the weights of the classes, as torch's cross-entropy has them."""
        return targets if self.weights is None else targets * self.weights

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _mixed(self, images: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        # A compiled graph would keep the first step's draws.
        return losses.mix(images, labels, self.classes, self.options, seed=self.seed, step=step)

    def _keep_features(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.features = inputs[0].detach()

    def parameter_groups(self, options: FitOptions) -> list[dict[str, Any]]:
        """Return groups with layer decay over the backbone; its classifier keeps the full rate."""
        return parameter_groups(self, options, self.backbone)

    def averages(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the average of the weights, which averages the backbone."""
        return [] if self.average is None else [(self.average.module, self.backbone)]

    def share_tokens(self, ranks: int) -> None:
        """Shard tokens across ranks in the backbone's blocks."""
        share_tokens(self.backbone.model, Shards(ranks))

    def signs(self) -> Signs:
        """Return the loss with its level under the best constant prediction: the entropy of the training labels under
        softmax, ln C for equal classes. Mixing images leaves it as it is.
        """
        smoothed = (1 - self.options.smoothing) * self.prior + self.options.smoothing / self.classes
        weighted = smoothed if self.weights is None else smoothed * self.weights.cpu()
        total = 1.0 if self.weights is None else float(weighted.sum())
        level = total * losses.constant_loss(weighted / total, sigmoid=self.options.loss == "sigmoid")
        name = "class_loss" if self.options.dense_weight else "loss"
        return Signs(statistic=name, chance=level, accuracy=float(self.prior.max()))

    def after_step(self, step: int) -> None:
        """Move the average of the weights."""
        if self.average is not None:
            self.average.update(self.backbone)

    @property
    def scored_backbone(self) -> Backbone:
        """The backbone that is evaluated and exported: as trained, or averaged."""
        if self.options.export == "raw":
            return self.backbone
        assert self.average is not None
        assert isinstance(self.average.module, Backbone)
        return self.average.module


def _accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the share of logits [B, C] whose largest is that of the targets [B, C]."""
    return (logits.detach().argmax(1) == targets.argmax(1)).float().mean()


def classifier(backbone: Backbone) -> nn.Module:
    """Return the layer that turns the pooled features of a backbone into logits.

    Raises:
        UserError: there are several, as in models for distillation.
    """
    layer = backbone.head if backbone.head is not None else backbone.model.get_classifier()
    if not isinstance(layer, nn.Module):
        raise UserError(f"backbone {backbone.spec.name}: {backbone.spec.arch} has more than one classifier")
    return layer
