"""The backbone under test: from what a user gives to a `Backbone` of any image size, copies of it, and images.

Shapes: B images, H x W pixels, D channels.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from timm.layers import DropPath, PatchDropout
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from backbones.spec import BackboneSpec, resolve
from transfer.core import live_modules, user_code
from transfer.core.errors import UsageError
from transfer.testing import CheckFailed

Factory = str | Path | nn.Module | Callable[[], nn.Module]


def spec_of(factory: Factory, parts: dict[str, Any]) -> BackboneSpec:
    """Return the specification of a backbone, with random weights unless it is a module that holds its own.

    Args:
        factory: whatever `--backbone` takes, `file.py:Class` too; a live `nn.Module`; or a class or function without
            required parameters that returns one.
        parts: fields of `BackboneSpec` in the place of its own.

    Raises:
        UsageError: an unknown name or field, or a class or function of a file with required parameters.
        UserError: a class or function fails, as one with required parameters does.
    """
    name = str(factory) if isinstance(factory, str | Path) else live_modules.register_module(factory)
    if live_modules.is_live(name):
        return resolve(name, **parts)
    spec, required = resolve(name, **{"weights": "random"} | parts), list[str]()
    if spec.kind == "user":
        part = user_code.load_part(spec.arch)
        with suppress(TypeError, ValueError):  # something compiled has no signature
            single = [item for item in inspect.signature(part).parameters.values() if "VAR_" not in item.kind.name]
            required = [item.name for item in single if item.default is item.empty]
    if required:
        raise UsageError(
            f"{spec.arch} needs {', '.join(required)}: a backbone is made without arguments; a part is checked inside "
            "a backbone, as backbone tiny with stem=..., attention=... or ffn=... (--stem, --attention, --ffn)"
        )
    return spec


Size = tuple[int, int]
_NOISE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, DropPath, PatchDropout)
_NEARLY_CONSTANT = 1e-4  # standard deviation of a parameter as initialised: scales, biases, layers of zeros
_PERTURBATION = 0.02


@dataclass(eq=False)
class Subject:
    """A backbone and the sizes at which it is checked.

    Attributes:
        spec: its specification.
        size: side in pixels of the square image; None: 4 patches, or 224 pixels where the patch is not known.
        divisor: what heights and widths must be multiples of; None: the patch, or the stride of the model's last map.
        seed: of weights and images.
    """

    spec: BackboneSpec
    size: int | None = None
    divisor: int | None = None
    seed: int = 0
    _made: dict[Any, Backbone] = field(default_factory=dict)

    @property
    def is_reinitialized(self) -> bool:
        """Whether a new model has weights of its own, by the seed."""
        return self.spec.weights != "live"

    @cached_property
    def step(self) -> int:
        """The pixels that heights and widths are multiples of."""
        if self.divisor is not None:
            return self.divisor
        if self.spec.patch is not None:
            return self.spec.divisor
        if self.spec.kind == "timm":
            stride = create(self.spec).stride
            return stride if 32 % stride else 32
        return 32 if (self.size or 224) >= 128 else 16

    @property
    def square(self) -> Size:
        """(H, W) of the square image."""
        side = self.size or (224 if self.spec.kind == "user" and self.divisor is None else 4 * self.step)
        return side, side

    @property
    def other_sizes(self) -> tuple[Size, ...]:
        """Sizes that are not square, with an odd number of steps where that is possible: 3 x 5 for a square of 4."""
        steps = self.square[0] // self.step
        low, high = (max(1, steps - 1 - steps // 8) * self.step, (steps + 1 + steps // 8) * self.step)
        return (low, high), (high, low)

    def made(self, size: Size | None = None, *, other_seed: bool = False, again: bool = False) -> Backbone:
        """Return a model as it was made, in evaluation mode; to be read, not changed.

        Args:
            other_seed: made with another seed.
            again: made a second time.
        """
        key = size or self.square, other_seed, again
        if key not in self._made:
            torch.manual_seed(self.seed + other_seed)
            self._made[key] = create(self.spec, img_size=key[0]).eval()
        return self._made[key]

    def backbone(self, size: Size | None = None) -> Backbone:
        """Return a model of its own in evaluation mode, whose nearly constant parameters have been perturbed.

        As initialised, a branch behind a scale of 1e-6 or a layer of zeros changes nothing, and hides its faults.
        """
        model = deepcopy(self.made(size))
        generator = torch.Generator().manual_seed(self.seed + 2)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.float().std(correction=0) < _NEARLY_CONSTANT:
                    noise = torch.randn(parameter.shape, generator=generator) * _PERTURBATION
                    parameter.add_(noise.to(parameter.dtype))
        return model

    def images(self, count: int = 2, size: Size | None = None) -> Tensor:
        """Return images [B, 3, H, W] in [0, 1] that differ in brightness and in every pixel."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        images = torch.rand(count, self.spec.in_chans, *(size or self.square), generator=generator)
        return images * torch.linspace(1.0, 0.4, count).view(-1, 1, 1, 1)


def train_without_noise(model: nn.Module) -> nn.Module:
    """Put a model into training mode without dropout and stochastic depth, and with the statistics of its batch
    norms fixed.
    """
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | DropPath | PatchDropout):
            module.eval()
        elif isinstance(module, _NOISE):
            module.p = 0.0
    return model


def difference(values: Tensor, reference: Tensor) -> float:
    """Return the largest difference of two tensors, as a share of the reference's largest absolute value."""
    scale = float(reference.abs().max())
    return float((values.float() - reference.float()).abs().max()) / max(scale, 1e-12)


def check_equal(values: Tensor, reference: Tensor, limit: float, what: str) -> None:
    """Raise CheckFailed if two tensors of features differ.

    Args:
        limit: the largest difference allowed, as a share of the largest reference value; 0: to the bit.
        what: subject of the reason.
    """
    if values.shape != reference.shape:
        raise CheckFailed(f"{what}: shape {list(values.shape)} instead of {list(reference.shape)}")
    apart = difference(values, reference)
    if not apart <= limit:
        allowed = f"at most {limit:.0e} is rounding" if limit else "they must be bit-exact"
        raise CheckFailed(f"{what}: features differ by {apart:.1e} of the largest one ({allowed})")


def text(size: Sequence[int]) -> str:
    """Return a size as text, H x W."""
    return " x ".join(map(str, size))
