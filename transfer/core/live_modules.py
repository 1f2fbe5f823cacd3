"""A user's `nn.Module` as it lives in this process, under the name `live:NAME` that commands take as a backbone.

Its identity is the sha256 of its state dict and that of the source files of its classes. Importing this imports no
torch.
"""

import hashlib
import inspect
import linecache
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from transfer.core.errors import UsageError, UserError, did_you_mean, first_line

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import TypeIs

LIVE_PREFIX = "live:"
_LIBRARIES = ("torch", "torchvision", "timm", "backbones")
"""Packages whose versions the record holds."""


@dataclass(frozen=True, eq=False)
class LiveModule:
    """A module, or a class or function without required parameters that returns one.

    Attributes:
        name: what tables call it.
        source: the module, or what makes it. A module keeps its weights: every run starts from a copy of it, whatever
            its seed. What a class or function makes is initialized in each run, after the run's seed is set.
    """

    name: str
    source: "nn.Module | Callable[[], nn.Module]"

    @property
    def is_reinitialized(self) -> bool:
        """Whether every run makes a module of its own."""
        return not _is_module(self.source)

    @cached_property
    def source_digest(self) -> str:
        """The sha256 (hex) of the source files of the user's classes, or of the function, with what they make.

        The printed structure and the plain attributes of its modules tell apart what one file makes, and modules that
        are put together from a library's parts and have equal tensors.
        """
        module = self.example
        parts = [*module.modules()] if _is_module(module) else []
        classes: set[Any] = {type(part) for part in parts} | ({self.source} if self.is_reinitialized else set())
        structure = repr([repr(module), *map(_plain_attributes, parts)])
        bases = set(chain.from_iterable(getattr(cls, "__mro__", (cls,)) for cls in classes))
        texts = sorted(set(map(_source_file, bases)))
        return hashlib.sha256("".join([structure, *texts]).encode()).hexdigest()

    @cached_property
    def weights_id(self) -> str:
        """`sha256:<hex>` over the state dict and the names of frozen parameters; "random" when `is_reinitialized`."""
        import torch

        if not _is_module(self.source):
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
            UserError: it cannot be copied, or its class or function fails.
        """
        try:
            return deepcopy(self.source).cpu() if _is_module(self.source) else self.source()
        except Exception as error:
            fix = "" if self.is_reinitialized else "; give its class, or a function that returns it"
            raise UserError(f"{LIVE_PREFIX}{self.name}: {first_line(error)}{fix}") from error

    @cached_property
    def example(self) -> Any:
        """The module, or one that it makes, which leaves the random numbers as they are."""
        import torch

        with torch.random.fork_rng(devices=()):
            return self.source if _is_module(self.source) else self.make()


def _is_module(source: Any) -> "TypeIs[nn.Module]":
    from torch import nn

    return isinstance(source, nn.Module)


def pixel_statistics(model: Any) -> dict[str, tuple[float, ...]]:
    """Return the mean and standard deviation by which the input of a user's whole model is normalised.

    A model of timm has them in its configuration. Every other takes images in [0, 1] as they are.
    """
    config = getattr(model, "pretrained_cfg", None)
    config = config if isinstance(config, dict) else {}
    if config.get("mean") and config.get("std"):
        return {"mean": tuple(config["mean"]), "std": tuple(config["std"])}
    return {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def _plain_attributes(module: "nn.Module") -> list[tuple[str, Any]]:
    values = sorted((name, value) for name, value in vars(module).items() if name != "training")
    return [(name, value) for name, value in values if isinstance(value, bool | int | float | str | tuple | None)]


_known: dict[str, LiveModule] = {}


def register_module(source: "nn.Module | Callable[[], nn.Module]", name: str | None = None) -> str:
    """Make a module known in this process, in the place of an earlier one of this name, and return `live:NAME`.

    Args:
        source: see `LiveModule`.
        name: by default that of the class or function.

    Raises:
        UsageError: a name that does not fit into a folder's name, or something else than a module or what makes one.
    """
    name = name or str(getattr(source, "__name__", type(source).__name__)).strip("<>")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,79}", name):
        raise UsageError(f"name={name!r}: begin with a letter or digit, then letters, digits and any of _ . + -")
    if not _is_module(source) and not callable(source):
        raise UsageError(f"backbone={source!r}: a name (text), an nn.Module, or a class or function that returns one")
    _known[name] = LiveModule(name, source)
    return f"{LIVE_PREFIX}{name}"


def find(text: str) -> LiveModule:
    """Return the module behind `live:NAME`.

    Raises:
        UserError: this process has none of this name.
    """
    name = text.removeprefix(LIVE_PREFIX)
    if name not in _known:
        fix = f"pass it to `transfer.evaluate(..., backbone=module, name={name!r})`"
        fault = f"a module of another process, which is not stored in a file{did_you_mean(name, _known)}"
        raise UserError(f"backbone {text}: {fault}; {fix}")
    return _known[name]


def is_live(text: str) -> bool:
    """Return whether a backbone's name or architecture means a live module."""
    return text.startswith(LIVE_PREFIX)


def _source_file(thing: Any) -> str:
    """Return the text of the file, or of the notebook's cell, with a class or function; "" for a library's.

    Of what was read from standard input, the compiled code.
    """
    if getattr(thing, "__module__", "").partition(".")[0] in (*_LIBRARIES, "builtins"):
        return ""
    functions = [value for value in vars(thing).values() if inspect.isfunction(value)] or [thing]
    codes = [function.__code__ for function in functions if inspect.isfunction(function)]
    files = sorted({code.co_filename for code in codes})
    for file in files:
        linecache.checkcache(file)  # it may have been edited and imported again
    text = "".join(chain.from_iterable(map(linecache.getlines, files)))
    return text or repr([(code.co_code, code.co_consts, code.co_names) for code in codes] or thing)
