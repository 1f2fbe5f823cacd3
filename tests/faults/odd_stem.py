"""A stem whose outputs or gradients are what $ODD names; see `numbers`."""

import os

import torch
from torch import Tensor, nn

AT_CALL = 3
FACTORS = {"nan": float("nan"), "inf": float("inf"), "zero": 0.0, "huge": 1e30}


class Stem(nn.Module):
    """A patchify stem whose tokens go wrong, on one rank alone where $ODD_RANK names it."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)
        self.calls = 0
        mine = os.environ.get("ODD_RANK", os.environ.get("RANK")) == os.environ.get("RANK")
        self.odd = os.environ["ODD"] if mine else ""

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, dim, H / patch, W / patch]."""
        tokens: Tensor = self.proj(x)
        self.calls += self.training
        if self.odd in FACTORS:
            tokens = tokens * FACTORS[self.odd]
        elif self.odd == "equal":
            tokens = torch.ones_like(tokens) + 0 * tokens
        elif self.odd == "one image":
            tokens = torch.cat([tokens[:1] * float("nan"), tokens[1:]])
        elif self.odd == "inf gradient" and self.training and self.calls == AT_CALL and tokens.requires_grad:
            tokens.register_hook(lambda gradient: gradient * float("inf"))
        elif self.odd == "nan later" and self.training and self.calls >= AT_CALL:
            tokens = tokens * float("nan")
        return tokens
