"""From what a user gives as a backbone to something that makes `Backbone`s of any image size."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.spec import BackboneSpec, override, resolve
from transfer.core import live_modules, user_code
from transfer.core.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from backbones.backbone import Backbone

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
    backbone: "Backbone | None" = None

    @property
    def is_reinitialized(self) -> bool:
        """Whether `make` initialises weights of its own, by the seed."""
        if self.backbone is not None:
            return False
        return not live_modules.is_live(self.spec.arch) or live_modules.find(self.spec.arch).is_reinitialized

    def make(self, size: tuple[int, int] | None) -> "Backbone":
        """Return a new backbone; `size` is (H, W) in pixels, which only our architectures and timm's are told."""
        from copy import deepcopy

        from backbones.backbone import create

        return create(self.spec, img_size=size) if self.backbone is None else deepcopy(self.backbone).cpu()


def find_source(factory: "Factory", overrides: dict[str, Any]) -> Source:
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
    from backbones.backbone import Backbone

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
    from torch import nn

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
