"""`roi_align_forward` and `roi_align_backward` of `mmcv._ext`, over torchvision's RoIAlign with mean pooling.

Shapes: M RoIs (image, x1, y1, x2, y2), B images, C channels, H x W map pixels, h x w bins of a RoI, s x t samples of a
bin (down, across).
"""

import torch
import torchvision  # noqa: F401 (fills torch.ops.torchvision)
from torch import Tensor

from tasks.detection.operator_dtype import operator_dtype

MEAN = 1


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Pool maps [B, C, H, W] within RoIs [M, 5] into `output` [M, C, h, w]: RoIAlign (arXiv 1703.06870, section 3).

    Args:
        argmax_y, argmax_x: of max pooling, unused.
        aligned_height, aligned_width: h, w.
        spatial_scale: map pixels per image pixel.
        sampling_ratio: s and t; 0: as many as a bin has pixels down and across. A bin without any samples is 0.
        pool_mode: 1: mean of the samples, which no detector of mmdetection changes. Samples beyond the map by more than
            a pixel are 0.
        aligned: whether pixel centres are at 0.5; if not, RoIs are taken at least one map pixel long and wide.

    A RoI with a number that is not finite gives nan, where compiled operators stop the process or read foreign memory.

    Raises:
        NotImplementedError: max pooling.
    """
    if pool_mode != MEAN:
        raise NotImplementedError("RoIAlign with max pooling needs a compiled mmcv: choose pool_mode 'avg'")
    dtype = operator_dtype(input)
    boxes, size = _sound(rois.to(dtype), sampling_ratio), (aligned_height, aligned_width)
    align = torch.ops.torchvision.roi_align
    output.copy_(align(input.to(dtype), boxes, spatial_scale, *size, sampling_ratio, aligned))
    wrong = ~rois.isfinite().all(1)
    if wrong.is_cuda or wrong.any():  # on a GPU, reading the flag would wait for it
        output.masked_fill_(wrong[:, None, None, None], torch.nan)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Add the gradient of `roi_align_forward` with respect to the maps to `grad_input` [B, C, H, W]."""
    dtype = operator_dtype(grad_output)
    grad, boxes = grad_output.to(dtype), _sound(rois.to(dtype), sampling_ratio)
    size = (aligned_height, aligned_width)
    grad_input.add_(
        torch.ops.torchvision._roi_align_backward(
            grad, boxes, spatial_scale, *size, *grad_input.shape, sampling_ratio, aligned
        )
    )


def _sound(rois: Tensor, sampling_ratio: int) -> Tensor:
    """Return RoIs that torchvision accepts: empty for those not finite, and for inverted ones if their size counts."""
    rois = torch.where(rois.isfinite().all(1, keepdim=True), rois, 0)
    if sampling_ratio > 0:
        return rois
    return torch.cat([rois[:, :3], rois[:, 3:].maximum(rois[:, 1:3])], dim=1)
