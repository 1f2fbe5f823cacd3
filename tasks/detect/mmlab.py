"""Import of mmdetection: over a user's compiled mmcv where there is one, else over torchvision and plain torch.

Its maintained fork (onedl-mmengine, onedl-mmcv, onedl-mmdetection) installs without compiled operators, and `mmcv.ops`,
hence `mmdet.models`, fails without the module `mmcv._ext`. The bridge replaces it: names, arguments and tensors filled
in place are those that `mmcv/ops/{nms,roi_align}.py` of onedl-mmcv 2.3.6 use, on any device. Half precisions are
computed in float32 and rounded at the end. Every other name can be looked up, as mmcv does on import, and says what is
missing when called.

Shapes: M boxes (x1, y1, x2, y2) or RoIs (image, x1, y1, x2, y2), B images, C channels, maps H x W, bins of a RoI h x w.
"""

import contextlib
import importlib
import io
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache, reduce
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal, NoReturn

import torch
import torchvision
from timm.layers import LayerNorm2d
from torch import Tensor

from transfer.core.errors import MissingInput, UserError, shortened
from transfer.core.machine_errors import install_command, machine_error


def operator_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the type to compute in: the widest of the tensors', float32 at least."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the boxes [M, 4] kept, the best score first; of equal scores, the first.

    A box is removed when its IoU with a better box that is kept exceeds the threshold; it is x2 - x1 + `offset` wide.
    """
    # adding the offset to the far corner is exact in float64
    dtype = torch.float64 if offset else operator_dtype(boxes, scores)
    boxes = torch.cat([boxes[:, :2].to(dtype), boxes[:, 2:].to(dtype) + offset], dim=1)
    # rounded as the IoUs are: an IoU of 3/5 must not exceed a threshold of 0.6
    threshold = float(torch.tensor(iou_threshold, dtype=dtype))
    return torchvision.ops.nms(boxes, scores.to(dtype), threshold)


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, *, pool_mode: int, **options: Any
) -> None:
    """Pool maps [B, C, H, W] within RoIs [M, 5] into `output` [M, C, h, w]: RoIAlign (arXiv 1703.06870, section 3).

    Args:
        argmax_y, argmax_x: of max pooling, unused.
        pool_mode: 1: mean of the samples, which no detector of mmdetection changes. Samples beyond the map by more than
            a pixel are 0.
        options: see `_arguments`.

    A RoI with a number that is not finite gives nan, where compiled operators stop the process or read foreign memory.

    Raises:
        NotImplementedError: max pooling.
    """
    if pool_mode != 1:
        raise NotImplementedError("RoIAlign with max pooling needs a compiled mmcv: choose pool_mode 'avg'")
    dtype = operator_dtype(input)
    output.copy_(torch.ops.torchvision.roi_align(input.to(dtype), *_arguments(rois.to(dtype), (), **options)))
    wrong = ~rois.isfinite().all(1)
    if not wrong.is_cpu or wrong.any():  # on a GPU, reading the flag would wait for it
        output.masked_fill_(wrong[:, None, None, None], torch.nan)


def roi_align_backward(
    grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor, **options: Any
) -> None:
    """Add the gradient of `roi_align_forward` with respect to the maps to `grad_input` [B, C, H, W]."""
    grad = grad_output.to(operator_dtype(grad_output))
    arguments = _arguments(rois.to(grad.dtype), grad_input.shape, **options)
    grad_input.add_(torch.ops.torchvision._roi_align_backward(grad, *arguments))


def _arguments(rois: Tensor, shape: Sequence[int], **options: Any) -> tuple[Any, ...]:
    """Return torchvision's arguments from mmcv's; RoIs not finite become empty, and inverted ones if their size counts.

    Args:
        rois: [M, 5].
        shape: of the maps, for the gradient.
        options: `aligned_height`, `aligned_width`: h, w; `spatial_scale`: map pixels per image pixel; `sampling_ratio`:
            s and t, 0: as many as a bin has pixels down and across, and a bin without any samples is 0; `aligned`:
            whether pixel centres are at 0.5; if not, RoIs are taken at least one map pixel long and wide.
    """
    ratio, size = options["sampling_ratio"], (options["aligned_height"], options["aligned_width"])
    rois = torch.where(rois.isfinite().all(1, keepdim=True), rois, 0)
    if ratio <= 0:
        rois = torch.cat([rois[:, :3], rois[:, 3:].maximum(rois[:, 1:3])], dim=1)
    return rois, options["spatial_scale"], *size, *shape, ratio, options["aligned"]


OPS: dict[str, Callable[..., Any]] = {
    operator.__name__: operator for operator in (nms, roi_align_forward, roi_align_backward)
}


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
            raise UserError(
                f"mmcv's operator {name!r} needs a compiled mmcv: pip install a build of onedl-mmcv with its operators "
                f"for torch {torch.__version__}, or choose a model without this operator"
            )

        return call


COMPILED = "mmcv._ext"
MMLAB_PACKAGES = ("mmengine", "mmcv", "mmdet")
INSTALL = install_command("detection")


def load() -> None:
    """Import and register mmdet's models and make "mmdet" the default scope, without printing. May be repeated.

    Raises:
        UserError: packages are missing, overwrite each other, or cannot be imported.
        MachineError: a library of the system is missing.
    """
    check_installed()
    if ops_source() == "bridge":
        sys.modules.setdefault(COMPILED, Bridge(COMPILED))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        try:
            _import()
        except (ImportError, AssertionError) as error:  # mmdet asserts the versions of the other two
            if reported := machine_error(error):  # OpenCV without its system libraries
                raise reported from error
            raise MissingInput(f"mmdetection cannot be imported: {error}; {INSTALL}") from error


def versions() -> dict[str, str]:
    """Return the version of each package that `load` imported, by import name."""
    return {name: str(importlib.import_module(name).__version__) for name in MMLAB_PACKAGES}


def ops_source() -> Literal["compiled", "bridge"]:
    """Return the origin of mmcv's operators."""
    loaded = sys.modules.get(COMPILED)
    if loaded is not None:
        return "bridge" if isinstance(loaded, Bridge) else "compiled"
    package = find_spec("mmcv")
    extension = package and PathFinder.find_spec(COMPILED, package.submodule_search_locations)
    return "compiled" if extension else "bridge"


def check_installed() -> None:
    """Raise UserError for packages that are missing, or overwrite each other."""
    if missing := [name for name in MMLAB_PACKAGES if not (name in sys.modules or find_spec(name))]:
        raise MissingInput(f"detection needs {shortened(missing)}: {INSTALL}")
    for name in MMLAB_PACKAGES:
        if (owners := _owners().get(name, []))[1:]:
            fix = f"pip uninstall -y {' '.join(owners)} && {INSTALL}"
            raise UserError(f"{' and '.join(owners)} are both installed and overwrite each other's files: {fix}")


_owners = cache(packages_distributions)
"""The distributions behind each import name: the fork's and the official ones share theirs."""


def _import() -> None:
    importlib.import_module("mmdet.models")
    importlib.import_module("mmdet.datasets")  # for its transforms; prints, and so is not left to a later import
    importlib.import_module("tasks.detect.targets").install(bridge=ops_source() == "bridge")
    registry = importlib.import_module("mmengine.registry").MODELS
    registry.register_module(name="LN2d", module=LayerNorm2d, force=True)
    scopes = importlib.import_module("mmengine.registry").DefaultScope
    current = scopes.get_current_instance()
    if current is None or current.scope_name != "mmdet":
        # the newest instance counts; a name must be new
        scopes.get_instance(f"transfer-{time.monotonic_ns()}", scope_name="mmdet")
