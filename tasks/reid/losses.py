"""BNNeck, the trainable head on top of a backbone, and the training losses of tasks."""

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


def pairwise_distances(features: Tensor) -> Tensor:
    """Return the Euclidean distances [B, B] of features [B, D], at least 1e-6 for a finite gradient of the root.

    They are computed from differences: products of features far from zero would cancel.
    """
    return torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").clamp(min=1e-6)


def batch_hard_triplet(features: Tensor, labels: Tensor, margin: float | None = None) -> Tensor:
    """Compute the triplet loss over each anchor's farthest positive and nearest negative in the batch.

    It is the mean over anchors of log(1 + exp(d_ap - d_an)), or of max(d_ap - d_an + margin, 0) with a margin
    (Hermans et al. 2017, arXiv 1703.07737, section 2).

    Args:
        features: features [B, D], not normalised.
        labels: labels [B]; every label occurs at least twice and there are at least two.
    """
    distances = pairwise_distances(features)
    same = labels[:, None] == labels[None, :]
    farthest_positive = distances.masked_fill(~same, -torch.inf).amax(1)
    nearest_negative = distances.masked_fill(same, torch.inf).amin(1)
    gap = farthest_positive - nearest_negative
    if margin is None:
        return nn.functional.softplus(gap).mean()
    return (gap + margin).clamp(min=0).mean()
