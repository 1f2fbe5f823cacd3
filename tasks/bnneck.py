"""Trainable heads on top of a backbone."""

import torch
from torch import Tensor, nn


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
