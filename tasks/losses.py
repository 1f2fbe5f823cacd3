"""Training losses of tasks."""

import torch
from torch import Tensor, nn


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
