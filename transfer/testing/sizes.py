"""Checks of shapes: image sizes, single images, token maps; and of a device other than the CPU, which is pretended.

There shapes and devices are followed, and nothing is computed. B images, H x W pixels, D channels, h x w grid.
"""

import re
import traceback
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import patch

import timm
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from backbones.backbone import Backbone
from backbones.build import pooled_features
from transfer.core.errors import first_line
from transfer.core.files import ROOT
from transfer.testing import CheckFailed, CheckSkipped
from transfer.testing.subject import Size, Subject, check_equal, text


def builds(subject: Subject) -> str:
    """The model is made and gives finite features [B, D] of square images, which differ from image to image.

    Hint: a backbone is made without arguments, takes images [B, 3, H, W] and gives features [B, D]; a part is checked
    inside one, as backbone tiny with stem=..., attention=... or ffn=... (--stem, --attention, --ffn)
    """
    model = subject.backbone()
    features = _features(model, subject.images())
    if torch.equal(features[0], features[1]):
        raise CheckFailed("two different images have equal features, so the output does not depend on the image")
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{text(subject.square)} pixels give D = {model.dim}; {count / 1e6:.2f} million parameters"


def single_image(subject: Subject) -> None:
    """One image alone, B = 1, gives features [1, D]: nothing squeezes the batch.

    Hint: name the dimensions that squeeze() takes, or flatten(1)
    """
    _features(subject.backbone(), subject.images(1))


def other_sizes(subject: Subject) -> str:
    """A model made for images that are not square, on odd grids, gives features of the same D.

    Hint: take h and w from the tensor (x.shape[-2:]); never write a grid such as 14 x 14
    """
    dim = subject.backbone().dim
    for size in subject.other_sizes:
        try:
            model = subject.backbone(size)
            _features(model, subject.images(size=size))
        except CheckFailed:
            raise
        except Exception as error:
            raise CheckFailed(f"images of {text(size)} pixels (H x W): {first_line(error)}") from error
        if model.dim != dim:
            raise CheckFailed(f"D is {dim} at {text(subject.square)} pixels and {model.dim} at {text(size)}")
    return ", ".join(map(text, subject.other_sizes))


def one_model_all_sizes(subject: Subject) -> None:
    """The model made for the square takes the other sizes too, as detection needs it.

    Hint: resample positions in the forward pass; take h and w from the tensor
    """
    model = subject.backbone()
    for size in subject.other_sizes:
        try:
            _features(model, subject.images(size=size))
        except Exception as error:
            reason = f"made for {text(subject.square)} pixels, given {text(size)}: {first_line(error)}"
            if subject.spec.kind == "timm":
                raise CheckSkipped(f"timm's {subject.spec.arch} is made for one size: {reason}") from error
            raise CheckFailed(reason) from error


def maps(subject: Subject) -> str:
    """`maps` gives [B, D, h, w] with finite values, and a last grid of (H, W) / stride.

    Hint: return [B, D, h, w] with h from H and w from W, and give feature_info the right reduction
    """
    shapes = []
    for size in (subject.square, *subject.other_sizes):
        model = _with_maps(subject, size)
        layers = model.maps(subject.images(size=size), list(range(len(model.model.feature_info))))
        for layer, values in enumerate(layers):
            if values.ndim != 4 or values.shape[0] != 2 or not values.isfinite().all():
                raise CheckFailed(f"layer {layer} at {text(size)} pixels: {_described(values)}, expected [2, D, h, w]")
        grid = tuple(layers[-1].shape[2:])
        expected = (-(-size[0] // model.stride), -(-size[1] // model.stride))
        if grid != expected:
            raise CheckFailed(
                f"images of {text(size)} pixels (H x W): the last map is {text(grid)}, and stride {model.stride} "
                f"means {text(expected)}"
            )
        shapes.append(f"{text(size)} pixels -> {text(grid)}")
    return ", ".join(shapes)


def token_grid(subject: Subject) -> str:
    """Where the image changes, the first map changes most: rows are rows and columns are columns.

    Hint: keep [B, D, h, w] and flatten(2) in this order; transpose(2, 3) swaps rows and columns
    """
    places = 0
    for size in (subject.square, *subject.other_sizes):
        model = _with_maps(subject, size)
        for row, column in ((0.9, 0.1), (0.1, 0.9), (0.6, 0.4)):
            images = subject.images(1, size)
            changed = images.clone()
            side = max(2, min(size) // 4)
            top, left = int(row * (size[0] - side)), int(column * (size[1] - side))
            changed[..., top : top + side, left : left + side] = 1 - changed[..., top : top + side, left : left + side]
            before, after = (model.maps(batch, [0])[0] for batch in (images, changed))
            changes = (after - before).norm(dim=1)[0]
            _check_place(changes, (top + side / 2, left + side / 2), side, size)
            places += 1
    return f"{places} places"


def _check_place(changes: Tensor, centre: tuple[float, float], side: int, size: Size) -> None:
    """Compare the centre of a change with that of the quarter of the map [h, w] that changed most."""
    height, width = changes.shape
    cells = (size[0] / height, size[1] / width)
    peak = int(changes.argmax())
    place = ((peak // width + 0.5) * cells[0], (peak % width + 0.5) * cells[1])
    if any(abs(place[axis] - centre[axis]) > side / 2 + 1.5 * cells[axis] for axis in (0, 1)):
        raise CheckFailed(
            f"images of {text(size)} pixels (H x W) change around row {centre[0]:.0f}, column {centre[1]:.0f}, and the "
            f"first map {text(tuple(changes.shape))} changes most around row {place[0]:.0f}, column {place[1]:.0f}"
        )


def _with_maps(subject: Subject, size: Size) -> Backbone:
    model = subject.backbone(size)
    if not hasattr(model.model, "forward_intermediates") or not hasattr(model.model, "feature_info"):
        raise CheckSkipped("the model gives pooled features only (no forward_intermediates and feature_info)")
    return model


def _described(values: Tensor) -> str:
    finite = "" if values.isfinite().all() else " with values that are not finite"
    return f"{values.dtype} {list(values.shape)}{finite}"


def _features(model: Backbone, images: Tensor) -> Tensor:
    """Return features [B, D], checked for form and finite values."""
    features = model.pooled(images)
    expected = [images.shape[0], model.dim]
    if not isinstance(features, Tensor):
        raise CheckFailed(f"images {list(images.shape)} give a {type(features).__name__}, expected a tensor {expected}")
    if list(features.shape) != expected or not features.is_floating_point() or not features.isfinite().all():
        raise CheckFailed(f"images {list(images.shape)} give {_described(features)}, expected finite floats {expected}")
    return features


def memory_formats(subject: Subject) -> None:
    """Images and weights in channels_last, and images that are slices or transposed views, give the same features.

    Hint: use reshape or flatten in place of view, or call contiguous() before it
    """
    model = subject.backbone()
    images = subject.images()
    inputs = model.normalised(images)
    # of inputs that are normalised already, so that their strides reach the model as they are
    reference = pooled_features(model.model, inputs)
    wide = torch.cat([inputs, inputs], 3)
    last = inputs.contiguous(memory_format=torch.channels_last)
    forms = {
        "channels_last images": last,
        "images that are a slice of a larger tensor": wide[..., : inputs.shape[3]],
        "images stored with columns before rows": inputs.transpose(2, 3).contiguous().transpose(2, 3),
        "channels_last images and weights": last,
    }
    for form, values in forms.items():
        if "weights" in form:
            model.to(memory_format=torch.channels_last)
        try:
            features = pooled_features(model.model, values)
        except Exception as error:
            raise CheckFailed(f"{form}: {first_line(error)}") from error
        check_equal(features, reference, 1e-3, form)


_DEVICE = torch.device("meta")
"""Not cuda, for whose gradients a CPU build of torch would abort."""
_COPIES = ("copy_", "to", "type_as", "__getitem__", "__setitem__", "index_put", "index_put_")
"""Operations that take tensors of the CPU beside those of a GPU."""
_MIXTURE = "same device|the expected device|Cannot copy out of meta tensor|to numpy"
"""What torch and `_Separate` say where tensors of two devices meet, or leave theirs."""
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
    with torch.enable_grad(), _Separate(), patch.object(torch, "autocast", _Autocast):
        features: Tensor = model(images)
        if features.device != _DEVICE:
            raise RuntimeError("features are not on the same device as images")
        if train:
            features.sum().backward()


class _Autocast(torch.autocast):
    """Autocast, which meta tensors do not have, as on the CPU."""

    def __init__(self, device_type: str, *given: Any, **named: Any) -> None:
        super().__init__("cpu" if device_type == _DEVICE.type else device_type, *given, **named)


class _Separate(TorchFunctionMode):
    """Raises where tensors of the CPU, other than scalars, meet others, also in the few operations where torch's own
    meta tensors let them pass, such as an embedding of `torch.arange`.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [*_tensors_in([*args, *(kwargs or {}).values()])]
        on_cpu = [tensor for tensor in tensors if tensor.device != _DEVICE]
        mixed = len(on_cpu) < len(tensors) and any(tensor.ndim for tensor in on_cpu)
        name = getattr(func, "__name__", repr(func))
        if mixed and name not in _COPIES:
            raise RuntimeError(f"{name} takes tensors of the same device; some are on the CPU")
        return func(*args, **(kwargs or {}))


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _placed(error: Exception) -> str:
    """Return an error as one line, with the user's line that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    place = f"{users[-1].filename} at line {users[-1].lineno}, `{users[-1].line}`: " if users else ""
    return place + first_line(error)
