"""Linear classifiers of several learning rates, trained in one pass over the images.

DINOv2 trains a grid of 13 rates this way (facebookresearch/dinov2, dinov2/eval/linear.py: 1e-5, 2e-5, 5e-5, ... 0.1,
each times images per step / 256, under SGD and the sum of the heads' losses) and takes the best by its validation set.
Here the best is taken by held-out training images, and all heads begin with the same values. Rates are used as given.
Shapes: B images, F channels of the features, M held-out images.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tasks.linear.learner import LinearLearner, classify, scores_of
from transfer.engine.dist import broadcast_object
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.options import FitOptions
from transfer.engine.outcome import Signs
from transfer.task import Scores


class RateGrid(Learner):
    """Copies of one linear classifier, each with its own rate.

    The loss is the sum over heads, so that a head's gradient is that of its own loss: it trains as it would alone.
    """

    def __init__(self, encode: Callable[[Tensor], Tensor], first: LinearLearner, rates: Sequence[float]) -> None:
        super().__init__()
        self.encode, self.rates = encode, rates
        self.heads = nn.ModuleList(copy.deepcopy(first) for _ in rates)

    @property
    def learners(self) -> dict[float, LinearLearner]:
        """The classifiers by their rates."""
        return dict(zip(self.rates, self.heads, strict=True))  # type: ignore[arg-type]

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the sum of the heads' losses on this rank's batch, and the numbers of the head with the lowest one."""
        images, labels = batch
        with torch.no_grad():
            features = self.encode(images).float()
        losses, accuracies = zip(*(head.loss_and_accuracy(features, labels) for head in self.learners.values()))
        best = torch.stack(losses).detach().argmin()
        of_best = {"best_loss": torch.stack(losses).detach()[best], "accuracy": torch.stack(accuracies)[best]}
        return {"loss": torch.stack(losses).sum(), **of_best, "spread": feature_spread(features)}

    def parameter_groups(self, options: FitOptions) -> list[dict[str, Any]]:
        """Return the groups of each head, with its rate."""
        each = self.learners.items()
        return [group for rate, head in each for group in head.parameter_groups(replace(options, lr=rate))]

    def signs(self) -> Signs:
        """Return those of one classifier, of the lowest loss: a rate that is too large is no failure of the others."""
        return replace(next(iter(self.learners.values())).signs(), statistic="best_loss")

    def validate(self, features: Tensor, labels: Tensor, device: torch.device) -> Scores:
        """Validate each head; return the top-1 of each rate."""
        scores = {rate: head.validate(features, labels, device) for rate, head in self.learners.items()}
        return {f"top1_lr{rate:g}": of_rate["top1"] for rate, of_rate in scores.items() if of_rate}

    def choose(self, features: Tensor, labels: Tensor, device: torch.device) -> tuple[float, list[dict[str, float]]]:
        """Return the rate with the best top-1 on held-out features [M, F], the first of several, and all scores."""
        rows = []
        for rate, head in self.learners.items():
            held_out = broadcast_object(classify(head.head, features, labels, device))
            broken = (held_out < 0).any() or (head.last < 0).any()  # not finite
            scores = {} if broken else scores_of(head.last) | {"best_top1": scores_of(head.best)["top1"]}
            rows.append({"lr": rate, "selection_top1": 0.0 if broken else scores_of(held_out)["top1"], **scores})
        return max(rows, key=lambda row: row["selection_top1"])["lr"], rows
