"""Linear classifiers of several learning rates, trained in one pass over the images.

DINOv2 trains a grid of 13 rates this way (facebookresearch/dinov2, dinov2/eval/linear.py: 1e-5, 2e-5, 5e-5, ... 0.1,
each times images per step / 256, under SGD and the sum of the heads' losses) and takes the best by its validation set.
Here the best is taken by held-out training images, and all heads begin with the same values. Rates are used as given.
Shapes: B images, F channels of the features, M held-out images, N validation images.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tasks.linear.learner import LinearLearner, classify, scores_of
from transfer.engine.context import Context
from transfer.engine.learner import Batch, Learner
from transfer.engine.options import FitOptions
from transfer.engine.outcome import Signs
from transfer.task import Scores


class RateGrid(Learner):
    """Copies of one linear classifier of features, each with its own rate.

    The loss is the sum over heads, so that a head's gradient is that of its own loss: it trains as it would alone.
    """

    def __init__(self, encode: Callable[[Tensor], Tensor], first: LinearLearner, rates: Sequence[float]) -> None:
        super().__init__()
        self.encode, self.rates = encode, rates
        self.heads: Sequence[LinearLearner] = nn.ModuleList(copy.deepcopy(first) for _ in rates)  # type: ignore[assignment]

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the sum of the heads' losses on this rank's batch, and the numbers of the head with the lowest one."""
        images, labels = batch
        with torch.no_grad():
            features = self.encode(images)
        each = [head((features, labels), step) for head in self.heads]
        stats = {name: torch.stack([of_head[name] for of_head in each]) for name in each[0]}
        losses = stats.pop("loss")
        best = losses.detach().argmin()
        of_best = {name: values[best] for name, values in stats.items()}
        return {"loss": losses.sum(), "best_loss": losses.detach()[best], **of_best}

    def parameter_groups(self, options: FitOptions) -> list[dict[str, Any]]:
        """Return the groups of each head, with its rate."""
        each = zip(self.rates, self.heads)
        return [group for rate, head in each for group in head.parameter_groups(replace(options, lr=rate))]

    def signs(self) -> Signs:
        """Return those of one classifier, of the lowest loss: a rate that is too large is no failure of the others."""
        return replace(self.heads[0].signs(), statistic="best_loss")

    def validate(self, features: Tensor, labels: Tensor, device: torch.device) -> Scores:
        """Classify validation features [N, F] by each head, and keep the results; return the top-1 of each rate."""
        scores = {rate: head.validate(features, labels, device) for rate, head in zip(self.rates, self.heads)}
        return {f"top1_lr{rate:g}": of_rate["top1"] for rate, of_rate in scores.items() if of_rate}

    def choose(self, features: Tensor, labels: Tensor, context: Context) -> LinearLearner:
        """Return the head with the best top-1 on held-out features [M, F], the first of several; the record has all."""
        rows = []
        for rate, head in zip(self.rates, self.heads):
            held_out = scores_of(classify(head.head, features, labels, context.device))["top1"]
            best = scores_of(head.best)["top1"]
            rows.append({"lr": rate, "selection_top1": held_out, **scores_of(head.last), "best_top1": best})
        chosen = max(range(len(rows)), key=lambda index: rows[index]["selection_top1"])
        context.details["lrs"] = {"chosen": self.rates[chosen], "rates": rows}
        among = f"{len(rows)} by {len(labels)} held-out training images"
        context.note(f"learning rate {self.rates[chosen]:g}, chosen among {among}")
        return self.heads[chosen]
