"""What mmdetection computes from annotations, with few waits for the GPU; equal to the bit to its own.

On a GPU every index by a mask, `nonzero`, `unique`, `.item()` and blocking copy waits for all queued work. `install`
replaces the functions and methods of mmdetection that do so most often. Shapes: N objects, M anchors or proposals.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.ops import roi_align
from mmcv.ops.nms import batched_nms
from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss
from mmdet.models.losses.focal_loss import sigmoid_focal_loss as compiled_focal_loss
from mmdet.models.losses.smooth_l1_loss import L1Loss, SmoothL1Loss, l1_loss, smooth_l1_loss
from mmdet.models.task_modules.assigners import AssignResult, MaxIoUAssigner
from mmdet.models.task_modules.prior_generators import AnchorGenerator
from mmdet.models.task_modules.samplers import RandomSampler, SamplingResult
from mmdet.models.utils.misc import unmap as indexed_unmap
from mmdet.structures.mask import BitmapMasks
from mmdet.structures.mask.mask_target import mask_target_single as mask_target_on_cpu
from timm.layers import to_2tuple
from torch import Tensor

assign_to_objects = MaxIoUAssigner.assign
assign_nothing = MaxIoUAssigner.assign_wrt_overlaps
grid_priors = AnchorGenerator.single_level_grid_priors
sample_by_class = RandomSampler.sample


def assign_wrt_overlaps(self: Any, overlaps: Tensor, gt_labels: Tensor) -> AssignResult:
    """Assign anchors to objects by their IoU [N, M]: 0 below the threshold, k + 1 to object k, -1 in between."""
    if not overlaps.numel():
        return assign_nothing(self, overlaps, gt_labels)
    highest, objects = overlaps.max(dim=0)
    low, high = self.neg_iou_thr if isinstance(self.neg_iou_thr, tuple) else (0, self.neg_iou_thr)
    assigned = torch.where((highest >= low) & (highest < high), 0, -1)
    assigned = torch.where(highest >= self.pos_iou_thr, objects + 1, assigned)
    if self.match_low_quality:  # an object's best anchors are its own, and of objects that share one, the last's
        best, anchors = overlaps.max(dim=1, keepdim=True)
        is_best = overlaps == best if self.gt_max_assign_all else F.one_hot(anchors[:, 0], overlaps.shape[1]).bool()
        numbers = torch.arange(1, len(overlaps) + 1, dtype=torch.int32, device=overlaps.device)
        last = torch.where(is_best & (best >= self.min_pos_iou), numbers[:, None], 0).amax(0)
        assigned = torch.where(last > 0, last, assigned)
    labels = torch.where(assigned > 0, gt_labels[(assigned - 1).clamp(min=0)], -1)
    return AssignResult(len(overlaps), assigned, highest, labels=labels)


def assign(
    self: Any, pred_instances: Any, gt_instances: Any, gt_instances_ignore: Any = None, **options: Any
) -> AssignResult:
    """Assign as mmdetection does, but ignore regions in images without objects, too, where it has background alone."""
    result = assign_to_objects(self, pred_instances, gt_instances, gt_instances_ignore, **options)
    if self.ignore_iof_thr > 0 and not len(gt_instances) and gt_instances_ignore is not None:
        shares = self.iou_calculator(pred_instances.priors, gt_instances_ignore.bboxes, mode="iof")
        result.gt_inds = torch.where((shares > self.ignore_iof_thr).any(dim=1), -1, result.gt_inds)
    return result


def sample(self: Any, assign_result: AssignResult, pred_instances: Any, gt_instances: Any, **options: Any) -> Any:
    """Draw positive and negative proposals on the CPU, where mmdetection draws its random numbers, too."""
    if type(self) is not RandomSampler:  # others, derived from it, choose in their own way
        return sample_by_class(self, assign_result, pred_instances, gt_instances, **options)
    priors, boxes = pred_instances.priors, gt_instances.bboxes
    objects = len(boxes) if self.add_gt_as_proposals else 0
    if objects:
        priors = torch.cat([boxes, priors])
        assign_result.add_gt_(gt_instances.labels)
    assigned = AssignResult(objects, assign_result.gt_inds.cpu(), None, None)
    positive = self._sample_pos(assigned, int(self.num * self.pos_fraction)).flatten()
    most = int(self.neg_pos_ub * max(1, len(positive))) if self.neg_pos_ub >= 0 else self.num
    negative = self._sample_neg(assigned, min(self.num - len(positive), most)).flatten()
    samples = [places.sort().values.to(priors.device, non_blocking=True) for places in (positive, negative)]
    flags = (torch.arange(len(priors), device=priors.device) < objects).byte()
    return SamplingResult(*samples, priors, boxes, assign_result, flags)


def mask_target_single(pos_proposals: Tensor, pos_assigned_gt_inds: Tensor, gt_masks: Any, cfg: Any) -> Tensor:
    """Return the masks [M, h, w], 0 or 1, of the proposals' objects within the proposals [M, 4]."""
    if not (len(pos_proposals) and len(gt_masks) and isinstance(gt_masks, BitmapMasks)) or cfg.get("soft_mask_target"):
        return mask_target_on_cpu(pos_proposals, pos_assigned_gt_inds, gt_masks, cfg)
    masks = torch.from_numpy(gt_masks.masks).to(pos_proposals.device, non_blocking=True).to(pos_proposals.dtype)
    x, y = pos_proposals[:, 0::2].clamp(0, gt_masks.width), pos_proposals[:, 1::2].clamp(0, gt_masks.height)
    rois = torch.stack([pos_assigned_gt_inds.to(x), x[:, 0], y[:, 0], x[:, 1], y[:, 1]], dim=1)
    return (roi_align(masks[:, None], rois, to_2tuple(cfg.mask_size), 1.0, 0, "avg", True)[:, 0] >= 0.5).float()


def unmap(data: Tensor, count: int, inds: Tensor, fill: float = 0) -> Tensor:
    """Return the rows of `data` at the places of `inds` [count] that are set, and `fill` at all others."""
    whole = data.new_full((count, *data.shape[1:]), fill)
    return whole.masked_scatter_(inds.bool().view(-1, *[1] * (data.ndim - 1)), data)


def single_level_grid_priors(
    self: Any, featmap_size: Any, level_idx: int, dtype: torch.dtype = torch.float32, device: Any = "cuda"
) -> Tensor:
    """Return the anchors of a level; those of one place stay on the device."""
    self.base_anchors[level_idx] = self.base_anchors[level_idx].to(device)
    return grid_priors(self, featmap_size, level_idx, dtype, device)


def unchecked(function: Callable[..., Tensor], *names: str) -> Callable[..., Tensor]:
    """Return the `forward` of a loss of boxes that does not ask whether any weight is above zero."""

    def forward(self: Any, *tensors: Tensor, reduction_override: str | None = None, **options: Any) -> Tensor:
        options |= {name: getattr(self, name) for name in names}
        return self.loss_weight * function(*tensors, reduction=reduction_override or self.reduction, **options)

    return forward


def sigmoid_focal_loss(pred: Tensor, target: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Return the focal loss of logits [M, C] and classes [M] by the formula that mmdetection takes on CPUs."""
    classes = F.one_hot(target, pred.shape[1] + 1)[:, :-1]  # the last one is background
    return py_sigmoid_focal_loss(pred, classes, *arguments, **options)


@wraps(batched_nms)
def nms_by_class(boxes: Tensor, scores: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Suppress boxes of a class, the offset that keeps classes apart added in float64.

    In float32 the 80th class of an image of 1,024 pixels is moved to a grid of 1/128 pixel: enough for boxes a few
    pixels wide to stay beside a better one that covers more than the threshold.
    """
    remaining, places = batched_nms(boxes.double(), scores, *arguments, **options)
    return remaining.to(torch.promote_types(boxes.dtype, scores.dtype)), places


def install(*, bridge: bool) -> None:
    """Put the replacements in place; those of mmcv's operators only over the `bridge`.

    Compiled ones take float32 boxes only, and have a focal loss for GPUs.
    """
    MaxIoUAssigner.assign_wrt_overlaps = assign_wrt_overlaps
    MaxIoUAssigner.assign = assign
    RandomSampler.sample = sample
    AnchorGenerator.single_level_grid_priors = single_level_grid_priors
    L1Loss.forward, SmoothL1Loss.forward = unchecked(l1_loss), unchecked(smooth_l1_loss, "beta")
    _replace(mask_target_on_cpu, mask_target_single)
    _replace(indexed_unmap, unmap)
    if bridge:
        _replace(batched_nms, nms_by_class)
        _replace(compiled_focal_loss, sigmoid_focal_loss)


def _replace(original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Replace a function in every module of mmcv and mmdetection that has imported it."""
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] in ("mmcv", "mmdet")]:
        if getattr(module, original.__name__, None) is original:
            setattr(module, original.__name__, replacement)
