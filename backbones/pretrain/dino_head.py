"""DINO's projection head (Caron et al. 2021, arXiv 2104.14294, section 3.1 and appendix C).

Shapes: B samples, D channels, K prototypes.
"""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

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
            outputs: Tensor = functional.linear(x, self.weight_v) * scale
            return outputs


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
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.last_layer = WeightNormLinear(BOTTLENECK, out_dim, fixed_norm=norm_last_layer, exact=exact)

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, D] to outputs [B, K]."""
        # float32: in half precision the normalisation's guard against zero is itself zero
        outputs: Tensor = self.last_layer(functional.normalize(self.mlp(features).float(), dim=1))
        return outputs
