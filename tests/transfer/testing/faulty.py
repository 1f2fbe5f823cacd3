"""Stems and models with one fault each, for the tests of the conformance test. `Sound` and `SoundStem` have none."""

import torch
from torch import Tensor, nn


class SoundStem(nn.Module):
    """A conv stem: images [B, 3, H, W] -> [B, dim, H / patch, W / patch]."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.BatchNorm2d(8)
        self.proj = nn.Conv2d(8, dim, patch // 4, patch // 4)

    def features(self, images: Tensor) -> Tensor:
        """Return the maps between the two convolutions."""
        return self.norm(self.conv(images)).relu()

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        return self.proj(self.features(images))


class HardCodedGrid(SoundStem):
    """Reshapes to the 14 x 14 grid of images of 224 pixels."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        tokens = super().forward(images)
        return tokens.flatten(2).reshape(len(tokens), tokens.shape[1], 14, 14)


class DropsGradient(SoundStem):
    """Detaches between its convolutions."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        return self.proj(self.features(images).detach())


class ViewOfNonContiguous(SoundStem):
    """Calls view on a tensor with the strides of its input."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        return super().forward(images.view(len(images), -1).view(images.shape))


class BatchNormInEval(SoundStem):
    """Normalises by the statistics of the batch in evaluation mode too."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__(dim, patch)
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)


class RandomInEval(SoundStem):
    """Adds noise in evaluation mode too."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        tokens = super().forward(images)
        return tokens + 0.01 * torch.randn_like(tokens)


class WritesIntoInput(SoundStem):
    """Centres the images in place."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        images -= images.mean((2, 3), keepdim=True)
        return super().forward(images)


class TransposedGrid(SoundStem):
    """Gives the tokens column by column, under the shape of row by row."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        tokens = super().forward(images)
        return tokens.transpose(2, 3).reshape(tokens.shape)


class SharedParameters(SoundStem):
    """Has one bias for two layers."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__(dim, patch)
        self.norm.bias = self.conv.bias


class SharedByAllModels(SoundStem):
    """Has a parameter of the class, which every instance registers as its own."""

    scale = nn.Parameter(torch.ones(8, 1, 1))

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__(dim, patch)
        self.register_parameter("gain", SharedByAllModels.scale)

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        return self.proj(self.features(images) * self.gain)


class CountsInEval(SoundStem):
    """Counts its forward passes in a buffer, in evaluation mode too."""

    passes: Tensor

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__(dim, patch)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        self.passes += 1
        return super().forward(images)


class ForgetsBuffer(SoundStem):
    """Draws a mask that its state dict does not hold."""

    mask: Tensor

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__(dim, patch)
        self.register_buffer("mask", torch.rand(8, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        return self.proj(self.features(images) * self.mask)


class OtherInTraining(SoundStem):
    """Scales its output in training mode."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        return super().forward(images) * (1.5 if self.training else 1.0)


class RefusesBf16(SoundStem):
    """Multiplies matrices of two types under autocast."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__(dim, patch)
        self.mix = nn.Parameter(torch.randn(8, 8))

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        features = self.features(images)
        with torch.autocast("cpu", enabled=False):
            gain = (features.mean((2, 3)) @ self.mix)[..., None, None]
        return self.proj(features * gain)


class IgnoresSeed(SoundStem):
    """Draws its weights from the operating system, so that no seed decides them."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__(dim, patch)
        import random

        system = random.SystemRandom()
        self.weight = nn.Parameter(torch.tensor([system.random() + 0.5 for _ in range(8)]).view(8, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        return self.proj(self.features(images) * self.weight)


class Sound(nn.Module):
    """A user's model without maps: images [B, 3, H, W] -> features [B, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = SoundStem(16, 16)
        self.out = nn.Linear(16, 16)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        return self.out(self.stem(images).relu().mean((2, 3)))


class Squeezes(Sound):
    """Squeezes away the batch of one image."""

    num_features = 16

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        return super().forward(images).squeeze()


class UnusedLayer(Sound):
    """Has a layer that its features do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)


class FixedSize(Sound):
    """Takes images of 64 x 64 pixels and fails within for others."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Linear(16 * 16, 16)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        return self.flat(self.stem(images).flatten(1))


class Fails(Sound):
    """Fails for every image."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        raise RuntimeError("out of ideas")
