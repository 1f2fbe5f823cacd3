"""Import of mmdetection: over a user's compiled mmcv where there is one, else over a bridge to `operators`.

Its maintained fork (onedl-mmengine, onedl-mmcv, onedl-mmdetection) installs without compiled operators, and `mmcv.ops`,
hence `mmdet.models`, fails without the module `mmcv._ext`. The bridge replaces it: names, arguments and tensors filled
in place are those that `mmcv/ops/{nms,roi_align,focal_loss}.py` of onedl-mmcv 2.3.6 use, on any device. Half precisions
are computed in float32 and rounded at the end. Every other name can be looked up, as mmcv does on import, and says what
is missing when called.
"""

import contextlib
import importlib
import io
import sys
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal, NoReturn

import torch
from timm.layers import LayerNorm2d

from tasks.detect.mmlab import operators
from transfer.core.errors import MissingInput, UserError, shortened
from transfer.core.machine_errors import machine_error

DIFFERENTIABLE = [f"{name}_{way}" for name in ("roi_align", "sigmoid_focal_loss") for way in ("forward", "backward")]
OPS: dict[str, Callable[..., Any]] = {name: getattr(operators, name) for name in ("nms", *DIFFERENTIABLE)}


class MissingOp(UserError, NotImplementedError):
    """An operator was called that only a compiled mmcv has."""


class Bridge(ModuleType):
    """The module that replaces `mmcv._ext`."""

    def __init__(self, name: str) -> None:
        super().__init__(name, __doc__)
        self.__spec__ = ModuleSpec(name, loader=None, origin=__file__)
        vars(self).update(OPS)

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

        def call(*_: object, **__: object) -> NoReturn:
            caller = sys._getframe(1)
            raise MissingOp(
                f"{caller.f_globals.get('__name__')}.{caller.f_code.co_qualname} calls mmcv's operator {name!r}, which "
                f"needs a compiled mmcv: pip install a build of onedl-mmcv with its operators for torch "
                f"{torch.__version__}, or choose a model without this operator"
            )

        return call


COMPILED = "mmcv._ext"
PACKAGES = {
    "mmengine": ("onedl-mmengine", ("mmengine", "mmengine-lite")),
    "mmcv": ("onedl-mmcv", ("mmcv", "mmcv-full", "mmcv-lite")),
    "mmdet": ("onedl-mmdetection", ("mmdet",)),
}
"""Import name -> the fork's distribution, and official ones of that import name."""
INSTALL = "pip install -e '.[detection]'"


def load() -> None:
    """Import and register mmdet's models and make "mmdet" the default scope, without printing. May be repeated.

    Raises:
        UserError: packages are missing, overwrite each other, or cannot be imported.
        MachineError: a library of the system is missing.
    """
    _check_installed()
    if ops_source() == "bridge":
        sys.modules.setdefault(COMPILED, Bridge(COMPILED))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _import()
        except (ImportError, AssertionError) as error:  # mmdet asserts the versions of the other two
            if reported := machine_error(error):  # OpenCV without its system libraries
                raise reported from error
            raise MissingInput(f"mmdetection cannot be imported: {error}; {INSTALL}") from error


def versions() -> dict[str, str]:
    """Return the version of each package that `load` imported, by import name."""
    return {name: str(importlib.import_module(name).__version__) for name in PACKAGES}


def ops_source() -> Literal["compiled", "bridge"]:
    """Return the origin of mmcv's operators."""
    loaded = sys.modules.get(COMPILED)
    if loaded is not None:
        return "bridge" if isinstance(loaded, Bridge) else "compiled"
    package = find_spec("mmcv")
    extension = package and PathFinder.find_spec(COMPILED, package.submodule_search_locations)
    return "compiled" if extension else "bridge"


def _check_installed() -> None:
    if missing := [name for name in PACKAGES if name not in sys.modules and find_spec(name) is None]:
        raise MissingInput(f"detection needs {shortened(missing)}: {INSTALL}")
    for fork, officials in PACKAGES.values():
        if (both := [name for name in (fork, *officials) if _installed(name)])[1:]:
            names = " ".join(both)
            raise UserError(
                f"{' and '.join(both)} are both installed and overwrite each other's files: "
                f"pip uninstall -y {names} && {INSTALL}"
            )


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _import() -> None:
    importlib.import_module("mmdet.models")
    importlib.import_module("mmdet.datasets")  # for its transforms; prints, and so is not left to a later import
    # a user's file that imported it before the bridge was there left it without its operator
    masks = importlib.import_module("mmdet.structures.mask.structures")
    masks.roi_align = importlib.import_module("mmcv.ops").roi_align  # type: ignore[attr-defined]
    _suppress_in_float64()
    registry = importlib.import_module("mmengine.registry").MODELS
    registry.register_module(name="LN2d", module=LayerNorm2d, force=True)
    scopes = importlib.import_module("mmengine.registry").DefaultScope
    current = scopes.get_current_instance()
    if current is None or current.scope_name != "mmdet":
        # the newest instance counts; a name must be new
        scopes.get_instance(f"transfer-{time.monotonic_ns()}", scope_name="mmdet")


def _suppress_in_float64() -> None:
    """Replace `batched_nms` wherever it was imported to, except over compiled operators, which take float32 only."""
    original = importlib.import_module("mmcv.ops.nms").batched_nms
    if ops_source() != "bridge" or hasattr(original, "__wrapped__"):
        return
    exact = operators.class_offsets_in_float64(original)
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] in ("mmcv", "mmdet")]:
        if getattr(module, "batched_nms", None) is original:
            module.batched_nms = exact  # type: ignore[attr-defined]
