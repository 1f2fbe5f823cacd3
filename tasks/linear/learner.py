"""A linear classifier on frozen features, and what its validations gave.

Shapes: B images, N validation images, F channels of the features, C classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backbones.pretrain.accuracy import accuracies, true_class_ranks
from backbones.pretrain.supervised.losses import constant_loss
from transfer.data.classification import balanced_weights
from transfer.engine.dist import broadcast_object
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.outcome import Signs
from transfer.task import Scores

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
        counts = np.bincount(train_labels, minlength=classes)
        weights = balanced_weights(counts) if class_weights == "balanced" else np.ones(classes)
        self.weights = torch.from_numpy(weights).float() if class_weights == "balanced" else None
        shares = counts / len(train_labels)
        self.commonest = float(shares.max())
        self.entropy = constant_loss(torch.from_numpy(shares * weights), sigmoid=False)
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


@torch.no_grad()
def classify(head: nn.Linear, features: Tensor, labels: Tensor, device: torch.device) -> Tensor:
    """Return the ranks and ties [N, 2] of the true classes (see `true_class_ranks`) of features [N, F], labels [N]; the
    same on every rank.
    """
    rows = zip(features.split(ROWS), labels.split(ROWS))
    return broadcast_object(torch.cat([true_class_ranks(head(x.to(device)), y.to(device)).cpu() for x, y in rows]))


def scores_of(ranks: Tensor) -> Scores:
    """Return top-1 and top-5 from ranks and ties [N, 2]."""
    return accuracies({"rank": ranks[:, 0].numpy(), "ties": ranks[:, 1].numpy()})
