"""`roi_align_forward` and `roi_align_backward` of `mmcv._ext`, over torchvision's RoIAlign with mean pooling.

On a CPU mean pooling is two matrix products for each RoI instead: torchvision's gradient takes one core and single
numbers there, and wants its maps with channels first, while necks whose norms work along channels leave them last.

Shapes: M RoIs (image, x1, y1, x2, y2), B images, C channels, H x W map pixels, h x w bins of a RoI, s x t samples of a
bin (down, across).
"""

from collections.abc import Iterator

import torch
import torchvision  # noqa: F401 (fills torch.ops.torchvision)
from torch import Tensor

from tasks.detection.operator_dtype import operator_dtype

MEAN = 1
SAMPLES_AT_ONCE = 1 << 25
"""Number of samples beyond which mean pooling on a CPU is torchvision's, too."""


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
    if weights := _axis_weights(boxes, input.shape, size, spatial_scale, sampling_ratio, aligned):
        _mean_pooled(input.to(dtype), boxes, weights, output)
    else:
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
    if weights := _axis_weights(boxes, grad_input.shape, size, spatial_scale, sampling_ratio, aligned):
        _add_mean_gradient(grad_input, grad, boxes, weights)
        return
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


def _geometry(
    rois: Tensor, size: tuple[int, int], scale: float, ratio: int, aligned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, [M, 2] each, down and across: the start of each RoI, the side of its bins in map pixels, s and t."""
    corners = rois[:, 1:].view(-1, 2, 2).flip(2) * scale - 0.5 * aligned
    start, sides = corners[:, 0], corners[:, 1] - corners[:, 0]
    bins = (sides if aligned else sides.clamp(min=1)) / sides.new_tensor(size)
    return start, bins, bins.ceil().long() if ratio <= 0 else torch.full_like(bins, ratio, dtype=torch.long)


def _axis_weights(
    rois: Tensor, shape: torch.Size, size: tuple[int, int], scale: float, ratio: int, aligned: bool
) -> list[Tensor] | None:
    """Return the weight of each map row in each bin of a RoI, [M, h, H], and of each column, [M, w, W].

    The samples of a bin stand on a grid, and a bilinear weight is a product: the mean over the bin is rows @ map @
    columns^T. None where torchvision is used instead: without RoIs, on a GPU, and for RoIs so large that their
    samples would fill the memory.
    """
    if rois.device.type != "cpu" or not len(rois):
        return None
    start, bins, grids = _geometry(rois, size, scale, ratio, aligned)
    if len(rois) * int((grids.amax(0) * grids.new_tensor(size)).max()) > SAMPLES_AT_ONCE:
        return None
    return [
        _weights_along(start[:, axis], bins[:, axis], grids[:, axis], size[axis], shape[2 + axis]) for axis in (0, 1)
    ]


def _weights_along(start: Tensor, side: Tensor, samples: Tensor, bins: int, length: int) -> Tensor:
    """Return the weights [M, bins, length] along one axis of the map.

    Args:
        start, side, samples: [M] the start of each RoI, the side of its bins, the samples of a bin.
        bins: bins of a RoI along the axis.
        length: pixels of the map along the axis.
    """
    n = samples.clamp(min=1)[:, None, None]
    sample = torch.arange(max(int(samples.max()), 1))
    place = start[:, None, None] + torch.arange(bins)[:, None] * side[:, None, None]
    place = place + (sample + 0.5) * side[:, None, None] / n  # [M, bins, samples]
    share = ((place >= -1) & (place <= length) & (sample < samples[:, None, None])) / n.to(place)
    place = place.clamp(0, length - 1)
    low = place.floor()
    weights = place.new_zeros(len(start), bins, length)
    weights.scatter_add_(2, low.long(), share * (1 - (place - low)))
    return weights.scatter_add_(2, (low.long() + 1).clamp(max=length - 1), share * (place - low))


def _parts(rois: Tensor, weights: list[Tensor]) -> Iterator[tuple[int, int, slice, slice, Tensor, Tensor]]:
    """Yield for each RoI with samples on the map its number, image, reached rows and columns, and their weights."""
    limits = []
    for along in weights:
        reached = (along != 0).any(1).byte()  # [M, length]
        limits += [reached.argmax(1), reached.shape[1] - reached.flip(1).argmax(1), reached.amax(1)]
    places = torch.stack([rois[:, 0].long(), *limits], dim=1).tolist()
    for number, (image, top, bottom, down, left, right, across) in enumerate(places):
        if down and across:
            rows, columns = slice(top, bottom), slice(left, right)
            yield number, image, rows, columns, weights[0][number, :, rows], weights[1][number, :, columns]


def _mean_pooled(maps: Tensor, rois: Tensor, weights: list[Tensor], output: Tensor) -> None:
    """Write the means of the samples of `maps` into `output` [M, C, h, w]."""
    output.zero_()
    maps, height = maps.permute(0, 2, 3, 1).contiguous(), output.shape[2]
    with torch.autocast("cpu", enabled=False):
        for number, image, rows, columns, down, across in _parts(rois, weights):
            strip = (down @ maps[image, rows, columns].flatten(1)).view(height, -1, maps.shape[3])
            output[number] = (across @ strip).permute(2, 0, 1)


def _add_mean_gradient(maps: Tensor, grad: Tensor, rois: Tensor, weights: list[Tensor]) -> None:
    """Add the gradient of `_mean_pooled`, `grad` [M, C, h, w], to `maps` [B, C, H, W], whose strides may change."""
    if maps.dtype != grad.dtype:
        wide = maps.to(grad.dtype)
        _add_mean_gradient(wide, grad, rois, weights)
        maps.copy_(wide)
        return
    if maps.is_contiguous() and not maps.any():
        # channels last, in place: sums, here and by autograd with other gradients, then run over contiguous memory
        maps.as_strided_(maps.shape, torch.empty_like(maps, device="meta", memory_format=torch.channels_last).stride())
    last = maps.permute(0, 2, 3, 1)
    with torch.autocast("cpu", enabled=False):
        for number, image, rows, columns, down, across in _parts(rois, weights):
            strip = across.T @ grad[number].permute(1, 2, 0)  # [h, columns, C]
            last[image, rows, columns] += (down.T @ strip.flatten(1)).view(-1, *strip.shape[1:])
