"""The backbone under test: from what a user gives to `Backbone`s of any image size, copies of it, and images.

Shapes: B images, H x W pixels, D channels.
"""

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from timm.layers import DropPath, PatchDropout
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from backbones.spec import BackboneSpec, override, resolve
from transfer.core import live_modules, user_code
from transfer.core.errors import UsageError
from transfer.testing import CheckFailed

Factory = str | Path | nn.Module | Callable[[], nn.Module]
PARTS = ("stem", "attention", "ffn")


@dataclass(frozen=True)
class Source:
    """What makes a backbone.

    Attributes:
        name: what reports call it.
        spec: its specification, with random weights unless it is a module that holds its own.
        backbone: a `Backbone` that exists already, which is copied; None: one is created from the specification.
    """

    name: str
    spec: BackboneSpec
    backbone: Backbone | None = None

    @property
    def is_reinitialized(self) -> bool:
        """Whether `make` initialises weights of its own, by the seed."""
        if self.backbone is not None:
            return False
        return not live_modules.is_live(self.spec.arch) or live_modules.find(self.spec.arch).is_reinitialized

    def make(self, size: tuple[int, int] | None) -> Backbone:
        """Return a new backbone; `size` is (H, W) in pixels, which only our architectures and timm's are told."""
        return create(self.spec, img_size=size) if self.backbone is None else deepcopy(self.backbone).cpu()


def find_source(factory: Factory, overrides: dict[str, Any]) -> Source:
    """Return the source of a backbone.

    Args:
        factory: whatever `--backbone` takes, `file.py:Class` too; a live `nn.Module`; or a class or function without
            required parameters that returns one.
        overrides: fields of `BackboneSpec`; `stem`, `attention` and `ffn` may be classes or functions of a file.

    Raises:
        UsageError: an unknown name or field, or a class with required parameters.
    """
    fields = {key: _located_part(key, value) if key in PARTS else value for key, value in overrides.items()}
    if isinstance(factory, str | Path):
        spec = resolve(
            str(factory), **(fields if live_modules.is_live(str(factory)) else {"weights": "random"} | fields)
        )
        if spec.kind == "user" and not live_modules.is_live(spec.arch):
            _check_needs_nothing(user_code.load(spec.arch), spec.arch)
        return Source(spec.name, spec)
    if isinstance(factory, Backbone):
        if fields:
            raise UsageError(f"{', '.join(fields)}: a Backbone that exists keeps its parts; give its name instead")
        return Source(factory.spec.name, factory.spec, factory)
    _check_needs_nothing(factory, repr(factory))
    name = str(getattr(factory, "__name__", type(factory).__name__)).strip("<>")
    live_modules.register(name, factory)
    return Source(name, override(resolve(f"{live_modules.PREFIX}{name}"), **fields))


def _check_needs_nothing(factory: Any, where: str) -> None:
    """Raise UsageError if a class or function has required parameters."""
    if isinstance(factory, nn.Module) or not callable(factory):
        return
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # something compiled has no signature
        return
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if required := [item.name for item in parameters if item.default is item.empty and item.kind not in several]:
        raise UsageError(
            f"{where} needs {', '.join(required)}: a backbone is made without arguments; a part is checked inside a "
            "backbone, as backbone tiny with stem=..., attention=... or ffn=... (--stem, --attention, --ffn)"
        )


def _located_part(part: str, value: Any) -> Any:
    """Return `file.py:Name` for a class or function of a file, and every other value as it is."""
    if not callable(value):
        return value
    file = inspect.getsourcefile(value)
    if file is None or not Path(file).is_file() or "." in value.__qualname__:
        raise UsageError(f"{part}={value!r}: put it at the top of a file, or give the text 'path/to/file.py:Name'")
    return f"{file}:{value.__name__}"


Size = tuple[int, int]
_NOISE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, DropPath, PatchDropout)
_NEARLY_CONSTANT = 1e-4  # standard deviation of a parameter as initialised: scales, biases, layers of zeros
_PERTURBATION = 0.02


@dataclass
class Subject:
    """A backbone and the sizes at which it is checked.

    Attributes:
        source: what makes it.
        size: side in pixels of the square image; None: 4 patches, or 224 pixels where the patch is not known.
        divisor: what heights and widths must be multiples of; None: the patch, or the stride of the model's last map.
        seed: of weights and images.
    """

    source: Source
    size: int | None = None
    divisor: int | None = None
    seed: int = 0
    _prototypes: dict[Size, Backbone] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """`ours`, `timm` or `user`."""
        return self.source.spec.kind

    @property
    def step(self) -> int:
        """The pixels that heights and widths are multiples of."""
        spec = self.source.spec
        if self.divisor is not None:
            return self.divisor
        if spec.patch is not None:
            return spec.divisor
        if self.kind == "timm":
            return self._step_of_timm
        return 32 if (self.size or 224) >= 128 else 16

    @property
    def square(self) -> Size:
        """(H, W) of the square image."""
        if self.size is not None:
            return self.size, self.size
        side = 224 if self.kind == "user" and self.divisor is None else 4 * self.step
        return side, side

    @property
    def other_sizes(self) -> tuple[Size, ...]:
        """Sizes that are not square, with an odd number of steps where that is possible: 3 x 5 for a square of 4."""
        steps = self.square[0] // self.step
        low, high = (max(1, steps - 1 - steps // 8) * self.step, (steps + 1 + steps // 8) * self.step)
        return (low, high), (high, low)

    @cached_property
    def _step_of_timm(self) -> int:
        stride = self.source.make(None).stride
        return stride if 32 % stride else 32

    @cached_property
    def twins(self) -> tuple[Backbone, Backbone]:
        """Two models made one after the other with the same seed; to be read, not changed."""
        if self.square not in self._prototypes:
            self._prototypes[self.square] = self._make(self.square, self.seed)
        return self._prototypes[self.square], self._make(self.square, self.seed)

    @cached_property
    def of_other_seed(self) -> Backbone:
        """A model made with another seed; to be read, not changed."""
        return self._make(self.square, self.seed + 1)

    def _make(self, size: Size, seed: int) -> Backbone:
        torch.manual_seed(seed)
        return self.source.make(size).eval()

    def backbone(self, size: Size | None = None) -> Backbone:
        """Return a model of its own in evaluation mode, whose nearly constant parameters have been perturbed.

        As initialised, a branch behind a scale of 1e-6 or a layer of zeros changes nothing, and hides its faults.
        """
        size = size or self.square
        if size not in self._prototypes:
            self._prototypes[size] = self._make(size, self.seed)
        model = deepcopy(self._prototypes[size])
        perturb(model, self.seed)
        return model

    def images(self, count: int = 2, size: Size | None = None) -> Tensor:
        """Return images [B, 3, H, W] in [0, 1] that differ in brightness and in every pixel."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        images = torch.rand(count, self.source.spec.in_chans, *(size or self.square), generator=generator)
        return images * torch.linspace(1.0, 0.4, count).view(-1, 1, 1, 1)


def perturb(model: nn.Module, seed: int) -> None:
    """Add small normal noise to every parameter that is nearly constant."""
    generator = torch.Generator().manual_seed(seed + 2)
    with torch.no_grad():
        for parameter in model.parameters():
            values = parameter.flatten()
            # the first values of a drawn parameter tell that it is one
            if values[:64].float().std(correction=0) < _NEARLY_CONSTANT and values.std(correction=0) < _NEARLY_CONSTANT:
                noise = torch.randn(parameter.shape, generator=generator) * _PERTURBATION
                parameter.add_(noise.to(parameter.dtype))


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
