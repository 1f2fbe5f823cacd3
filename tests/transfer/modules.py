"""Live modules that tests give to the Python interface."""

import torch
from torch import Tensor, nn


class TinyNet(nn.Module):
    """A convolution, batch norm and a linear layer: images [B, 3, H, W] in [0, 1] -> features [B, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.norm = nn.BatchNorm2d(16)
        self.out = nn.Linear(16, 16)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        features: Tensor = self.out(self.norm(self.stem(images)).relu().mean((2, 3)))
        return features


def tiny_net(seed: int = 0) -> TinyNet:
    """Return a module with weights of a seed of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TinyNet()


class Wide(TinyNet):
    """The same with a wider last layer, and a number that is no parameter."""

    def __init__(self, width: int = 24, scale: float = 1.0) -> None:
        super().__init__()
        self.out, self.scale = nn.Linear(16, width), scale
