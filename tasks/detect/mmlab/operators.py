"""The operators of mmcv's compiled module `mmcv._ext` that detectors need, over torchvision and plain torch.

Shapes: M boxes (x1, y1, x2, y2), anchors or RoIs (image, x1, y1, x2, y2), B images, C channels or classes, H x W map
pixels, h x w bins of a RoI, s x t samples of a bin (down, across). Logarithms of sigmoids do not saturate here.
"""

from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Any

import torch
import torchvision
from torch import Tensor
from torch.nn import functional as F


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


def class_offsets_in_float64(batched: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap mmcv's `batched_nms` so that the offset that keeps classes apart is added in float64.

    In float32 the 80th class of an image of 1,024 pixels is moved to a grid of 1/128 pixel: enough for boxes a few
    pixels wide to stay beside a better one that covers more than the threshold.
    """

    @wraps(batched)
    def suppressed(boxes: Tensor, scores: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        kept, places = batched(boxes.double(), scores, *arguments, **options)
        return kept.to(torch.promote_types(boxes.dtype, scores.dtype)), places

    return suppressed


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss (arXiv 1708.02002, section 3.2) of logits [M, C] into `output` [M, C].

    Args:
        target: [M] the class of each anchor; C, or a negative number, is background.
        weight: [C], factor of the anchors of each class, 1 for background; or empty.

    Raises:
        ValueError: a target exceeds C.
    """
    z, _, share = _signed(input, target, weight, alpha)
    output.copy_(-share * torch.sigmoid(-z) ** gamma * F.logsigmoid(z))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of each loss [M, C] by its logit into `grad_input` [M, C]."""
    z, sign, share = _signed(input, target, weight, alpha)
    slope = gamma * torch.sigmoid(z) * F.logsigmoid(z) - torch.sigmoid(-z)
    grad_input.copy_(sign * share * torch.sigmoid(-z) ** gamma * slope)


def _signed(input: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits of the truth [M, C], their signs relative to `input`, and the weighted factors alpha_t."""
    classes = input.shape[1]
    if len(target) and int(target.max()) > classes:
        raise ValueError(f"focal loss: a target is {int(target.max())}, with {classes} classes")
    logits = input.to(operator_dtype(input))
    hit = target[:, None] == torch.arange(classes, device=target.device)
    share = torch.where(hit, alpha, 1 - alpha).to(logits)
    if weight.numel():
        share = share * torch.where(hit.any(1), weight.to(logits)[target.clamp(0, classes - 1)], 1)[:, None]
    return torch.where(hit, logits, -logits), torch.where(hit, 1, -1), share


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
    if wrong.is_cuda or wrong.any():  # on a GPU, reading the flag would wait for it
        output.masked_fill_(wrong[:, None, None, None], torch.nan)


def roi_align_backward(
    grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor, **options: Any
) -> None:
    """Add the gradient of `roi_align_forward` with respect to the maps to `grad_input` [B, C, H, W]."""
    grad = grad_output.to(operator_dtype(grad_output))
    arguments = _arguments(rois.to(grad.dtype), grad_input.shape, **options)
    grad_input.add_(torch.ops.torchvision._roi_align_backward(grad, *arguments))


def _arguments(rois: Tensor, shape: Sequence[int], **options: Any) -> tuple[Any, ...]:
    """Return torchvision's arguments from mmcv's.

    Args:
        rois: [M, 5].
        shape: of the maps, for the gradient.
        options: `aligned_height`, `aligned_width`: h, w; `spatial_scale`: map pixels per image pixel; `sampling_ratio`:
            s and t, 0: as many as a bin has pixels down and across, and a bin without any samples is 0; `aligned`:
            whether pixel centres are at 0.5; if not, RoIs are taken at least one map pixel long and wide.
    """
    ratio, size = options["sampling_ratio"], (options["aligned_height"], options["aligned_width"])
    return _sound(rois, ratio), options["spatial_scale"], *size, *shape, ratio, options["aligned"]


def _sound(rois: Tensor, sampling_ratio: int) -> Tensor:
    """Return RoIs that torchvision accepts: empty for those not finite, and for inverted ones if their size counts."""
    rois = torch.where(rois.isfinite().all(1, keepdim=True), rois, 0)
    if sampling_ratio > 0:
        return rois
    return torch.cat([rois[:, :3], rois[:, 3:].maximum(rois[:, 1:3])], dim=1)
