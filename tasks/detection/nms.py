"""`nms` and `softnms` of `mmcv._ext`: boxes that overlap better ones are removed, or lose score.

The M boxes are x1, y1, x2, y2; each is x2 - x1 + `offset` wide.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from torch import Tensor

from tasks.detection.operator_dtype import operator_dtype

MANY = 1000
"""Number of boxes from which a CPU compares within groups only, as its time grows quadratically."""


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the boxes [M, 4] kept, the best score first; of equal scores, the first.

    A box is removed when its IoU with a better box that is kept exceeds the threshold; it is x2 - x1 + `offset` wide.
    """
    # adding the offset to the far corner is exact in float64
    dtype = torch.float64 if offset else operator_dtype(boxes, scores)
    boxes = torch.cat([boxes[:, :2].to(dtype), boxes[:, 2:].to(dtype) + offset], dim=1)
    # rounded as the IoUs are: an IoU of 3/5 must not exceed a threshold of 0.6
    threshold = float(torch.tensor(iou_threshold, dtype=dtype))
    scores = scores.to(dtype)
    if boxes.device.type != "cpu" or len(boxes) < MANY or threshold < 0:
        best: Tensor = torchvision.ops.nms(boxes, scores, threshold)
        return best
    kept = [group[torchvision.ops.nms(boxes[group], scores[group], threshold)] for group in _apart(boxes)]
    survivors = torch.cat(kept).sort().values
    return survivors[scores[survivors].argsort(descending=True, stable=True)]


def _apart(boxes: Tensor) -> Sequence[Tensor]:
    """Return the indices of the boxes [M, 4] in groups that share no column: mmcv shifts levels and classes apart."""
    order = boxes[:, 0].argsort()
    reached = boxes[order, 2].cummax(0).values
    ends = (boxes[order[1:], 0] >= reached[:-1]).nonzero().flatten() + 1
    return [group.sort().values for group in order.tensor_split(ends)]


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


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Return the indices of the boxes [M, 4] kept by Soft-NMS (arXiv 1704.04503, section 3), in the order chosen; CPU.

    The box of the best score is chosen (of equal ones, the first), the scores of the others decay with their IoU with
    it, those below `min_score` are removed, and so on. Two boxes without area do not overlap.

    Args:
        dets: [M, 5], whose first rows are filled with the boxes kept and their scores when chosen.
        method: 0: scores go to 0 from the IoU threshold on; 1: times 1 - IoU from there on; 2: times
            exp(-IoU^2 / sigma).
    """
    dtype = operator_dtype(boxes, scores)
    corners, marks = (tensor.detach().to("cpu", dtype).numpy() for tensor in (boxes, scores))
    marks, left = marks.copy(), np.arange(len(marks))
    kept = []
    while len(left):
        best = left[marks[left].argmax()]
        kept.append(best)
        left = left[left != best]
        iou = _iou(corners[best], corners[left], offset)
        if method == 2:
            marks[left] *= np.exp(-(iou**2) / sigma)
        else:
            marks[left] *= np.where(iou >= iou_threshold, (1 - iou) * method, 1)
        left = left[marks[left] >= min_score]
    chosen = np.array(kept, dtype=np.int64)
    dets[: len(kept)] = torch.from_numpy(np.column_stack([corners[chosen], marks[chosen]]))
    return torch.from_numpy(chosen)


def _iou(box: NDArray[Any], others: NDArray[Any], offset: int) -> NDArray[Any]:
    """Return the IoU [M] of a box [4] with others [M, 4], 0 where both have no area."""
    near, far = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    both = (far - near + offset).clip(min=0).prod(1)
    union = (box[2:] - box[:2] + offset).prod() + (others[:, 2:] - others[:, :2] + offset).prod(1) - both
    iou: NDArray[Any] = np.divide(both, union, out=np.zeros_like(both), where=union != 0)
    return iou
