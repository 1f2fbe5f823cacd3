"""A user's `nn.Module` as it lives in this process, under the name `live:NAME` that commands take as a backbone.

Its identity is the sha256 of its state dict, of the source of its classes, and its name: two modules of one name with
different weights are different backbones. Importing this imports no torch.
"""

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from backbones.errors import UsageError, UserError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

PREFIX = "live:"
_LIBRARIES = ("torch", "torchvision", "timm", "backbones")
"""Packages whose classes are named in the printed structure of a module; their versions stand in the record."""


@dataclass(frozen=True, eq=False)
class LiveModule:
    """A module, or a class or function without required parameters that returns one.

    Attributes:
        name: what tables call it.
        source: the module, or what makes it. A module keeps its weights: every run starts from a copy of it, whatever
            its seed. What a class or function makes is initialised anew in each run, after the run's seed is set.
    """

    name: str
    source: "nn.Module | Callable[[], nn.Module]"

    @property
    def is_made_anew(self) -> bool:
        """Whether every run makes a module of its own."""
        from torch import nn

        return not isinstance(self.source, nn.Module)

    @cached_property
    def source_digest(self) -> str:
        """The sha256 (hex) over the name, the printed structure, and the source of the user's classes."""
        digest = hashlib.sha256(self.name.encode())
        if self.is_made_anew:
            digest.update(_source_of(self.source).encode())
            if not inspect.isclass(self.source):
                return digest.hexdigest()
            classes = [self.source]
        else:
            digest.update(repr(self.source).encode())
            classes = list(dict.fromkeys(type(module) for module in self.source.modules()))  # type: ignore[union-attr]
        for text in sorted({_source_of(base) for cls in classes for base in _users_bases(cls)}):
            digest.update(text.encode())
        return digest.hexdigest()

    @cached_property
    def weights_id(self) -> str:
        """`sha256:<hex>` over the state dict and the names of frozen parameters; "random" when it is made anew."""
        import torch
        from torch import nn

        if not isinstance(self.source, nn.Module):
            return "random"
        digest = hashlib.sha256()
        for name, value in sorted(self.source.state_dict().items()):
            digest.update(name.encode())
            if isinstance(value, torch.Tensor):
                digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            else:
                digest.update(repr(value).encode())
        frozen = [name for name, parameter in self.source.named_parameters() if not parameter.requires_grad]
        digest.update(repr(frozen).encode())
        return f"sha256:{digest.hexdigest()}"

    def make(self) -> "nn.Module":
        """Return a module of its own on the CPU.

        Raises:
            UserError: it cannot be copied, or the class or function fails or returns no module.
        """
        from torch import nn

        if isinstance(self.source, nn.Module):
            try:
                return deepcopy(self.source).cpu()
            except Exception as error:
                raise UserError(
                    f"{PREFIX}{self.name}: the module cannot be copied ({type(error).__name__}: {error}); "
                    "give its class, or a function that returns it"
                ) from error
        try:
            made = self.source()
        except Exception as error:
            raise UserError(f"{PREFIX}{self.name}: {_name_of(self.source)}() raised {error!r}") from error
        if not isinstance(made, nn.Module):
            raise UserError(f"{PREFIX}{self.name}: {_name_of(self.source)}() returned no nn.Module, but {type(made)}")
        return made

    @property
    def pixel_statistics(self) -> dict[str, tuple[float, ...]]:
        """Mean and standard deviation by which its input is normalised.

        A model of timm has them in its configuration. Every other module takes images in [0, 1] as they are.
        """
        config = getattr(self.source, "pretrained_cfg", None)
        config = config if isinstance(config, dict) else {}
        if config.get("mean") and config.get("std"):
            return {"mean": tuple(config["mean"]), "std": tuple(config["std"])}
        return {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


_known: dict[str, LiveModule] = {}


def register(name: str, source: "nn.Module | Callable[[], nn.Module]") -> LiveModule:
    """Make a module known under `live:NAME` in this process, in the place of an earlier one of this name.

    Raises:
        UsageError: a name that cannot stand in a folder's name, or something else than a module or what makes one.
    """
    from torch import nn

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,79}", name):
        raise UsageError(f"name={name!r}: begin with a letter or digit, then letters, digits and any of _ . + -")
    if not isinstance(source, nn.Module) and not callable(source):
        raise UsageError(f"backbone={source!r}: a name (text), an nn.Module, or a class or function that returns one")
    _known[name] = LiveModule(name, source)
    return _known[name]


def find(text: str) -> LiveModule:
    """Return the module behind `live:NAME`.

    Raises:
        UserError: this process has none of this name.
    """
    name = text.removeprefix(PREFIX)
    if name not in _known:
        raise UserError(
            f"backbone {text}: a module of another process, which no file holds{did_you_mean(name, _known)}; "
            f"give it to `transfer.evaluate(..., backbone=module, name={name!r})`"
        )
    return _known[name]


def is_live(text: str) -> bool:
    """Return whether a backbone's name or architecture means a live module."""
    return text.startswith(PREFIX)


def _users_bases(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield the classes that a class is made of, without those of libraries."""
    for base in cls.__mro__:
        if base is not object and base.__module__.partition(".")[0] not in _LIBRARIES:
            yield base


def _source_of(thing: Any) -> str:
    """Return the source of a class or function; where Python has none, its name and the compiled code."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # of a class in a notebook, or of what was typed into a prompt
        functions = [value for value in vars(thing).values() if inspect.isfunction(value)] or [thing]
        return "\n".join([_name_of(thing), *map(_function_source, functions)])


def _function_source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        if code is None:
            return repr(type(function))
        return f"{_name_of(function)} {code.co_code.hex()} {code.co_consts} {code.co_names}"


def _name_of(thing: Any) -> str:
    return getattr(thing, "__qualname__", type(thing).__qualname__)
