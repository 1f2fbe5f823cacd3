"""DINO's projection head, and its objective: the student predicts the teacher's centred, sharpened softmax.

Caron et al. 2021, arXiv 2104.14294, section 3.1, equations 1-4, algorithm 1, and appendix C (the head).
Shapes: V crops (the first 2 are the global ones), B images or samples, D channels, K prototypes.
"""

from contextlib import nullcontext

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn
from torch.nn import functional


def teacher_log_probabilities(outputs: Tensor, center: Tensor, temperature: Tensor | float) -> Tensor:
    """Return log softmax((outputs - center) / temperature) in float32.

    Args:
        outputs: [2, B, K] of the teacher, for the global crops.
        center: [K].
        temperature: the temperature of the teacher.
    """
    return functional.log_softmax((outputs.float() - center) / temperature, dim=-1)


def cross_view_loss(outputs: Tensor, probabilities: Tensor, temperature: float) -> Tensor:
    """Return the mean cross-entropy between the teacher's view of a global crop and the student's of every other crop.

    -1 / (2 V - 2) sum over i = 1, 2, j = 1..V, j != i of mean_B sum_K p_i log softmax(s_j / temperature); each crop's
    log-sum-exp less its product with the probabilities it is compared with, so that no [V, B, K] softmax is formed.

    Args:
        outputs: [V, B, K] of the student, V at least 2, crops in the teacher's order.
        probabilities: [2, B, K] of the teacher, without gradient.
        temperature: the temperature of the student.

    Returns:
        The loss, a float32 scalar.
    """
    crops, batch, _ = outputs.shape
    logits = outputs.float() / temperature
    totals = logits.logsumexp(-1)  # [V, B]
    loss = (totals[:2] - (logits[:2] * probabilities.flip(0)).sum(-1)).sum()
    if crops > 2:
        # both of the teacher's views at once: [B, K] against [V - 2, B, K]
        loss = loss + (2 * totals[2:] - (logits[2:] * probabilities.sum(0)).sum(-1)).sum()
    return loss / (batch * (2 * crops - 2))


def entropy(log_probabilities: Tensor) -> Tensor:
    """Return the mean entropy, in nats, of distributions [..., K] given by their logarithms."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1).mean()


HIDDEN, BOTTLENECK = 2048, 256


class WeightNormLinear(nn.Module):
    """A linear layer without bias whose K weight vectors have norms of their own: y = g (v / |v|) x.

    Args:
        dim: channels of x.
        out_dim: K.
        fixed_norm: all norms g are 1 and stay so.
        exact: products in float32 under autocast too.
    """

    def __init__(self, dim: int, out_dim: int, *, fixed_norm: bool, exact: bool = False) -> None:
        super().__init__()
        self.exact = exact
        self.weight_v = nn.Parameter(nn.Linear(dim, out_dim, bias=False).weight.detach())
        # [K, 1], not [K]: the norms get weight decay with the directions, as in the reference
        self.weight_g = None if fixed_norm else nn.Parameter(torch.ones(out_dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, D] to [B, K]."""
        # The norms divide the outputs: to divide the weights takes several passes over K x D numbers more.
        norms = torch.linalg.vector_norm(self.weight_v, dim=1)
        scale = 1 / norms if self.weight_g is None else self.weight_g.squeeze(1) / norms
        with torch.autocast(x.device.type, enabled=False) if self.exact else nullcontext():
            return functional.linear(x, self.weight_v) * scale


class DinoHead(nn.Module):
    """Three layers with GELU and without batch norm, l2 normalisation, and a weight-normed layer to the prototypes.

    Args:
        dim: D of the backbone's features.
        out_dim: K.
        norm_last_layer: the prototypes' norms stay 1; outputs are then cosines.
        exact: these are products in float32 under autocast too. The teacher's are: divided by its temperature of 0.04,
            cosines of bfloat16 (0.003 apart) put 1.4 % of the probability elsewhere, those of float16 0.18 %.
    """

    def __init__(self, dim: int, out_dim: int, *, norm_last_layer: bool, exact: bool = False) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, BOTTLENECK)
        )
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.last_layer = WeightNormLinear(BOTTLENECK, out_dim, fixed_norm=norm_last_layer, exact=exact)

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, D] to outputs [B, K]."""
        # float32: in half precision the normalisation's guard against zero is itself zero
        return self.last_layer(functional.normalize(self.mlp(features).float(), dim=1))
