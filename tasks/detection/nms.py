"""`nms` of `mmcv._ext`: boxes that overlap better ones are removed.

The M boxes are x1, y1, x2, y2; each is x2 - x1 + `offset` wide.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torchvision
from torch import Tensor

from tasks.detection.operator_dtype import operator_dtype


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the boxes [M, 4] kept, the best score first; of equal scores, the first.

    A box is removed when its IoU with a better box that is kept exceeds the threshold; it is x2 - x1 + `offset` wide.
    """
    # adding the offset to the far corner is exact in float64
    dtype = torch.float64 if offset else operator_dtype(boxes, scores)
    boxes = torch.cat([boxes[:, :2].to(dtype), boxes[:, 2:].to(dtype) + offset], dim=1)
    # rounded as the IoUs are: an IoU of 3/5 must not exceed a threshold of 0.6
    threshold = float(torch.tensor(iou_threshold, dtype=dtype))
    kept: Tensor = torchvision.ops.nms(boxes, scores.to(dtype), threshold)
    return kept


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
