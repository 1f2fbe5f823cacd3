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


def find_source(factory: Factory, overrides: dict[str, Any]) -> tuple[str, BackboneSpec, Backbone | None]:
    """Return what reports call a backbone, its specification, and a `Backbone` that exists already and is copied.

    Weights are random, unless it is a module that holds its own.

    Args:
        factory: whatever `--backbone` takes, `file.py:Class` too; a live `nn.Module`; or a class or function without
            required parameters that returns one.
        overrides: fields of `BackboneSpec`; `stem`, `attention` and `ffn` may be classes or functions of a file.

    Raises:
        UsageError: an unknown name or field, or a class with required parameters.
    """
    fields = {
        key: _located_part(key, value) if key in user_code.VARIED_PARTS else value for key, value in overrides.items()
    }
    if isinstance(factory, str | Path):
        spec = resolve(
            str(factory), **(fields if live_modules.is_live(str(factory)) else {"weights": "random"} | fields)
        )
        if spec.kind == "user" and not live_modules.is_live(spec.arch):
            _check_needs_nothing(user_code.load_part(spec.arch), spec.arch)
        return spec.name, spec, None
    if isinstance(factory, Backbone):
        if fields:
            raise UsageError(f"{', '.join(fields)}: a Backbone that exists keeps its parts; give its name instead")
        return factory.spec.name, factory.spec, factory
    _check_needs_nothing(factory, repr(factory))
    name = str(getattr(factory, "__name__", type(factory).__name__)).strip("<>")
    live_modules.register_module(name, factory)
    return name, override(resolve(f"{live_modules.LIVE_PREFIX}{name}"), **fields), None


def _check_needs_nothing(factory: Any, where: str) -> None:
    """Raise UsageError if a class or function has required parameters."""
    if isinstance(factory, nn.Module) or not callable(factory):
        return
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # something compiled has no signature
        return
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    single = [item for item in parameters if item.kind not in several]
    if required := [item.name for item in single if item.default is item.empty]:
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


@dataclass(eq=False)
class Subject:
    """A backbone and the sizes at which it is checked.

    Attributes:
        name: what reports call it.
        spec: its specification.
        given: a `Backbone` that exists already, which is copied; None: one is created from the specification.
        size: side in pixels of the square image; None: 4 patches, or 224 pixels where the patch is not known.
        divisor: what heights and widths must be multiples of; None: the patch, or the stride of the model's last map.
        seed: of weights and images.
    """

    name: str
    spec: BackboneSpec
    given: Backbone | None
    size: int | None = None
    divisor: int | None = None
    seed: int = 0
    _made: dict[Any, Backbone] = field(default_factory=dict)

    @property
    def is_reinitialized(self) -> bool:
        """Whether a new model has weights of its own, by the seed."""
        live = live_modules.is_live(self.spec.arch)
        return self.given is None and (not live or live_modules.find(self.spec.arch).is_reinitialized)

    @cached_property
    def step(self) -> int:
        """The pixels that heights and widths are multiples of."""
        if self.divisor is not None:
            return self.divisor
        if self.spec.patch is not None:
            return self.spec.divisor
        if self.spec.kind == "timm":
            stride = self._make(None).stride
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

    def _make(self, size: Size | None) -> Backbone:
        """Return a new model; only our architectures and timm's are told the size."""
        return create(self.spec, img_size=size) if self.given is None else deepcopy(self.given).cpu()

    def made(self, size: Size | None = None, *, other_seed: bool = False, again: bool = False) -> Backbone:
        """Return a model as it was made, in evaluation mode; to be read, not changed.

        Args:
            other_seed: made with another seed.
            again: made a second time.
        """
        key = size or self.square, other_seed, again
        if key not in self._made:
            torch.manual_seed(self.seed + other_seed)
            self._made[key] = self._make(key[0]).eval()
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
