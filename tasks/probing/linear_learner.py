"""The classifier trained by the linear evaluation, and the frozen features that it is trained on.

Shapes: B images, N validation images, T tokens, D channels, F channels of the features, C classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.engine.context import Context
from backbones.engine.learner import Batch, Learner, feature_spread
from backbones.engine.outcome import Signs
from backbones.pretrain.accuracy import accuracies, true_class_ranks
from backbones.pretrain.losses import constant_loss
from tasks.task import Scores

ROWS = 8192  # validation features that are classified at a time


class LinearLearner(Learner):
    """A linear classifier on frozen features; the backbone behind `encode` is not a part of it.

    Attributes:
        last: ranks and ties [N, 2] of the validation images' true classes at the last validation.
        best: ranks and ties at the validation with the highest top-1, the first of several.
        best_head: weight and bias at that validation.
    """

    def __init__(self, encode: Callable[[Tensor], Tensor], dim: int, train_labels: NDArray[Any], classes: int) -> None:
        super().__init__()
        self.encode = encode
        self.head = nn.Linear(dim, classes)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        shares = np.bincount(train_labels) / len(train_labels)
        self.entropy, self.commonest = constant_loss(torch.from_numpy(shares), sigmoid=False), float(shares.max())
        self.last, self.best = torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int64)
        self.best_head: dict[str, Tensor] = {}

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the cross-entropy of this rank's batch (images [B, 3, H, W], labels [B])."""
        images, labels = batch
        with torch.no_grad():
            features = self.encode(images).float()
        with torch.autocast(features.device.type, enabled=False):
            logits = self.head(features)
            loss = nn.functional.cross_entropy(logits, labels)
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
