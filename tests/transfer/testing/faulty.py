"""Stems and models with one fault each, for the tests of the conformance test. `Sound` and `SoundStem` have none."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class SoundCore(nn.Module):
    """Softmax attention of (q, k, v) with a learned temperature, and its number of keys."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.linspace(0.5, 2, heads).view(-1, 1, 1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, length: int | None = None) -> Tensor:
        assert length is not None
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return length**-0.1 * (self.temperature * scale * (q @ k.mT)).softmax(-1) @ v


class SoundStem(nn.Module):
    """A conv stem: images [B, 3, H, W] -> [B, dim, H / patch, W / patch]. Faults take the place of its four parts."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.BatchNorm2d(8)
        self.proj = nn.Conv2d(8, dim, patch // 4, patch // 4)
        for name, part in self.parts().items():
            setattr(self, name, part)

    def parts(self) -> dict[str, Any]:
        """What it has besides, or in place of that."""
        return {}

    def seen(self, images: Tensor) -> Tensor:
        """The images as they are taken."""
        return images

    def between(self, features: Tensor) -> Tensor:
        """The maps between the two convolutions as the second takes them."""
        return features

    def given(self, tokens: Tensor) -> Tensor:
        """The tokens as they are given."""
        return tokens

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens."""
        return self.given(self.proj(self.between(self.norm(self.conv(self.seen(images))).relu())))


def _stem(name: str, **methods: Callable[..., Any]) -> Any:
    return type(name, (SoundStem,), {"__module__": __name__, **methods})


SHARED = nn.Parameter(torch.ones(8, 1, 1))
SYSTEM = random.SystemRandom()


def _in_float32(self: Any, features: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return features * (features.mean((2, 3)) @ self.mix)[..., None, None]


# reshapes to the 14 x 14 grid of images of 224 pixels
HardCodedGrid = _stem("HardCodedGrid", given=lambda _, x: x.flatten(2).reshape(len(x), x.shape[1], 14, 14))
DropsGradient = _stem("DropsGradient", between=lambda _, x: x.detach())
# calls view on a tensor with the strides of its input
ViewOfNonContiguous = _stem("ViewOfNonContiguous", seen=lambda _, x: x.view(len(x), -1).view(x.shape))
# normalises by the statistics of the batch in evaluation mode too
BatchNormInEval = _stem("BatchNormInEval", parts=lambda _: {"norm": nn.BatchNorm2d(8, track_running_stats=False)})
RandomInEval = _stem("RandomInEval", given=lambda _, x: x + 0.01 * torch.randn_like(x))
WritesIntoInput = _stem("WritesIntoInput", seen=lambda _, x: x.sub_(x.mean((2, 3), keepdim=True)))
# column by column, under the shape of row by row
TransposedGrid = _stem("TransposedGrid", given=lambda _, x: x.transpose(2, 3).reshape(x.shape))
SharedParameters = _stem("SharedParameters", parts=lambda self: {"shift": self.conv.bias})
# a parameter outside, which every instance registers as its own
SharedByAllModels = _stem("SharedByAllModels", parts=lambda _: {"gain": SHARED}, between=lambda self, x: x * self.gain)
CountsInEval = _stem("CountsInEval", parts=lambda _: {"passes": nn.Buffer(torch.zeros(()))},
                     seen=lambda self, x: x + 0 * self.passes.add_(1))  # fmt: skip
# a random mask that its state dict does not hold
ForgetsBuffer = _stem("ForgetsBuffer", parts=lambda _: {"mask": nn.Buffer(torch.rand(8, 1, 1), persistent=False)},
                      between=lambda self, x: x * self.mask)  # fmt: skip
OtherInTraining = _stem("OtherInTraining", given=lambda self, x: x * (1.5 if self.training else 1.0))
# multiplies matrices of two types under autocast
RefusesBf16 = _stem("RefusesBf16", parts=lambda _: {"mix": nn.Parameter(torch.randn(8, 8))}, between=_in_float32)
# draws weights from the operating system, so that no seed decides them
IgnoresSeed = _stem("IgnoresSeed", parts=lambda _: {"gain": nn.Parameter(torch.full((1,), SYSTEM.random() + 0.5))},
                    between=lambda self, x: x * self.gain)  # fmt: skip


def _shifted(self: Any, features: Tensor) -> Tensor:
    with torch.autocast(features.device.type, enabled=False):
        return features + self.shift


TensorAttribute = _stem("TensorAttribute", parts=lambda _: {"shift": torch.ones(8, 1, 1)}, between=_shifted)
# indices of the CPU, which an embedding on a GPU refuses, and a meta tensor alone does not
ArangeOnCpu = _stem("ArangeOnCpu", parts=lambda _: {"table": nn.Embedding(8, 1)},
                    between=lambda self, x: x + self.table(torch.arange(8))[..., None])  # fmt: skip
GoesToCpu = _stem("GoesToCpu", seen=lambda self, x: x if self.training else x.to("cpu"))


class _OnCpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * torch.ones(grad.shape)


GradientOnCpu = _stem("GradientOnCpu", between=lambda _, x: _OnCpu.apply(x))
# no fault: what decides is in a value
AsksForValues = _stem("AsksForValues", between=lambda _, x: x if x.sum() > 0 else 2 * x)


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
