"""Replacement of mmcv's compiled module `mmcv._ext`: the operators of detectors, over torchvision and plain torch.

Names, arguments and tensors filled in place are those that `mmcv/ops/{nms,roi_align,focal_loss}.py` of onedl-mmcv
2.3.6 use, on any device. Half precisions are computed in float32 and rounded at the end. Every other name can be looked
up, as mmcv does on import, and says what is missing when called.
"""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

import torch

from backbones.errors import UserError
from tasks.detection import focal, nms, roi_align

OPS: dict[str, Callable[..., Any]] = {
    "nms": nms.nms,
    "roi_align_forward": roi_align.roi_align_forward,
    "roi_align_backward": roi_align.roi_align_backward,
    "sigmoid_focal_loss_forward": focal.sigmoid_focal_loss_forward,
    "sigmoid_focal_loss_backward": focal.sigmoid_focal_loss_backward,
}


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
        return _missing(name)


def _missing(name: str) -> Callable[..., NoReturn]:
    def call(*_: object, **__: object) -> NoReturn:
        caller = sys._getframe(1)
        raise MissingOp(
            f"{caller.f_globals.get('__name__')}.{caller.f_code.co_qualname} calls mmcv's operator {name!r}, which "
            f"needs a compiled mmcv: pip install a build of onedl-mmcv with its operators for torch "
            f"{torch.__version__}, or choose a model without this operator"
        )

    return call
