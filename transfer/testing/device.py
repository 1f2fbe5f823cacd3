"""The check of a model on a device other than the CPU, which is pretended: shapes and devices are followed, nothing is
computed.
"""

import logging
import re
import traceback
from typing import Any
from unittest.mock import patch

import timm
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transfer.core.errors import first_line
from transfer.core.files import ROOT
from transfer.testing import CheckFailed, CheckSkipped
from transfer.testing.subject import Size, Subject

# Not cuda, for whose gradients a CPU build of torch would abort.
_DEVICE = torch.device("meta")
_COPIES = ("copy_", "_to_copy", "index", "_unsafe_index", "index_put", "index_put_")
"""Operations that take tensors of the CPU beside those of a GPU."""
_MIXTURE = r"same device|Mismatching \S+ device|\.numpy\(\)"
"""What torch and `_Separate` say where tensors of two devices meet."""
logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # gets the traceback of every error raised
_LIBRARIES = (*torch.__path__, *timm.__path__, *(str(ROOT / room) for room in ("backbones", "tasks", "transfer")))


def another_device(subject: Subject) -> None:
    """Training, forward and backward, and scoring run with weights, buffers and images on another device than the CPU.

    Hint: make tensors where their input is (torch.arange(n, device=x.device), x.new_zeros(n)), without .cpu();
    keep constants by register_buffer(name, value, persistent=False), modules in nn.ModuleList
    """
    for size, train in ((subject.square, True), (subject.square, False), (subject.other_sizes[0], True)):
        try:
            _run_elsewhere(subject, size, train)
        except Exception as error:
            if re.search(_MIXTURE, str(error)):
                raise CheckFailed(_placed(error)) from error
            if size == subject.square and train:
                reason = f"not checked, since devices cannot be followed without values: {_placed(error)}"
                raise CheckSkipped(reason) from error


def _run_elsewhere(subject: Subject, size: Size, train: bool) -> None:
    """Compute features of images of a size, and in training their gradients, by the model made for the square."""
    model, images = subject.backbone().train(train).to(_DEVICE), subject.images(size=size).to(_DEVICE)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.allow_meta = True
    with mode, _Separate(), patch.object(torch, "autocast", _Autocast):  # type: ignore[no-untyped-call]
        features: Tensor = model(images)
        if features.device != _DEVICE:
            raise RuntimeError("features are not on the same device as images")
        if train:
            features.sum().backward()


class _Autocast(torch.autocast):
    """Autocast, which meta tensors do not have, as on the CPU."""

    def __init__(self, device_type: str, *given: Any, **named: Any) -> None:
        super().__init__("cpu" if device_type == _DEVICE.type else device_type, *given, **named)


class _Separate(TorchDispatchMode):
    """Raises where tensors of the CPU, other than scalars, meet others, also in the few operations where torch's own
    meta tensors let them pass, such as an embedding of `torch.arange`.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        devices = {tensor.device for tensor in tensors if tensor.ndim or tensor.device == _DEVICE}
        if len(devices) > 1 and func.overloadpacket.__name__ not in _COPIES:
            raise RuntimeError(f"{func.overloadpacket.__name__} takes tensors of the same device; some are on the CPU")
        return func(*args, **(kwargs or {}))


def _placed(error: Exception) -> str:
    """Return an error as one line, with the user's line that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return "".join(f"{at.filename} at line {at.lineno}, `{at.line}`: " for at in own[-1:]) + first_line(error)
