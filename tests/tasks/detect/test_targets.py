"""Assignment, sampling and losses of boxes: equal to the bit to mmdetection's own, on a device that cannot be read."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tasks.detect import mmlab

mmlab.load()

from mmdet.models.losses import FocalLoss, L1Loss, SmoothL1Loss, sigmoid_focal_loss  # noqa: E402
from mmdet.models.task_modules import AssignResult, MaxIoUAssigner, RandomSampler  # noqa: E402
from mmdet.models.task_modules.samplers.base_sampler import BaseSampler  # noqa: E402
from mmdet.structures.mask import BitmapMasks  # noqa: E402
from mmengine.config import ConfigDict  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402

from tasks.detect import targets  # noqa: E402

DRAWN = torch.Generator().manual_seed(0)


def boxes_of(count, side=64):
    corners = torch.rand(count, 2, generator=DRAWN) * side
    return torch.cat([corners, corners + 1 + torch.rand(count, 2, generator=DRAWN) * side / 2], dim=1)


@pytest.mark.parametrize("objects", [0, 1, 5])
@pytest.mark.parametrize("low", [0.3, (0.1, 0.3)])
@pytest.mark.parametrize("every", [True, False])
def test_anchors_are_assigned_as_by_mmdetection(objects, low, every):
    """IoUs of few values, so that objects share their best anchors."""
    overlaps = torch.randint(0, 10, (objects, 300), generator=DRAWN) / 10
    overlaps[:, :20] = -1  # ignored
    labels = torch.randint(0, 7, (objects,), generator=DRAWN)
    assigner = MaxIoUAssigner(0.7, low, min_pos_iou=0.3, match_low_quality=True, gt_max_assign_all=every)
    expected, found = targets.assign_nothing(assigner, overlaps, labels), assigner.assign_wrt_overlaps(overlaps, labels)
    for name in ("gt_inds", "max_overlaps", "labels"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    assigner.assign_wrt_overlaps(overlaps.to("meta"), labels.to("meta"))


@pytest.mark.parametrize("count", [0, 2])
def test_anchors_within_regions_train_nothing(count):
    """With objects as mmdetection's own assigner, and without, where it takes them for background."""
    priors = InstanceData(priors=boxes_of(300))
    truth = InstanceData(bboxes=priors.priors[:count] + 1, labels=torch.arange(count))
    regions = SimpleNamespace(bboxes=torch.tensor([[20.0, 10, 70, 60]]))
    assigner = MaxIoUAssigner(0.7, 0.3, min_pos_iou=0.3, ignore_iof_thr=0.7)
    found = assigner.assign(priors, truth, regions).gt_inds
    inside = assigner.iou_calculator(priors.priors, regions.bboxes, mode="iof")[:, 0] > 0.7
    assert 20 < inside.sum() < 280
    assert (found[inside] == -1).all()
    assert (found[~inside] == 0).sum() > 100
    assert count == 0 or torch.equal(found, targets.assign_to_objects(assigner, priors, truth, regions).gt_inds)


@pytest.mark.parametrize(("bound", "own"), [(-1, True), (3, False)])
@pytest.mark.parametrize("objects", [0, 2])
def test_proposals_are_drawn_as_by_mmdetection(bound, own, objects):
    sampler = RandomSampler(num=32, pos_fraction=0.5, neg_pos_ub=bound, add_gt_as_proposals=own)
    numbers = torch.randint(-1, objects + 1, (200,), generator=DRAWN)
    priors, truth = boxes_of(200), SimpleNamespace(bboxes=boxes_of(objects), labels=torch.arange(objects))

    def drawn(sample):
        torch.manual_seed(0)
        assigned = AssignResult(objects, numbers.clone(), torch.zeros(200), labels=(numbers - 1).clamp(min=-1))
        return vars(sample(sampler, assigned, SimpleNamespace(priors=priors), truth))

    expected, found = drawn(BaseSampler.sample), drawn(RandomSampler.sample)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value, name
        assert not isinstance(value, torch.Tensor) or found[name].dtype == value.dtype


def test_masks_are_cut_out_as_by_mmdetection():
    masks = BitmapMasks(np.random.default_rng(0).integers(0, 2, (3, 64, 80)).astype(np.uint8), 64, 80)
    given = 2 * boxes_of(20) - 20, torch.randint(0, 3, (20,), generator=DRAWN), masks, ConfigDict(mask_size=28)
    found = targets.mask_target_single(*given)
    assert 0.2 < found.mean() < 0.8
    assert torch.equal(found, targets.mask_target_on_cpu(*given))
    assert targets.mask_target_single(given[0].to("meta"), given[1].to("meta"), *given[2:]).shape == (20, 28, 28)


def test_anchors_outside_are_filled_in_as_by_mmdetection():
    inside = torch.rand(50, generator=DRAWN) < 0.5
    for data in (torch.arange(int(inside.sum())), torch.rand(int(inside.sum()), 4, generator=DRAWN)):
        assert torch.equal(targets.unmap(data, 50, inside, 7), targets.indexed_unmap(data, 50, inside, 7))
        targets.unmap(data.to("meta"), 50, inside.to("meta"), 7)


@pytest.mark.parametrize("loss", [L1Loss(loss_weight=2.0), SmoothL1Loss(beta=0.5)])
def test_losses_of_boxes_need_no_weight_above_zero(loss):
    pred, target, weight = torch.randn(3, 40, 4, generator=DRAWN)
    difference = (pred - target).abs()
    if isinstance(loss, SmoothL1Loss):
        difference = torch.where(difference < 0.5, difference**2, difference - 0.25)
    expected = loss.loss_weight * (difference * weight).sum() / 7
    torch.testing.assert_close(loss(pred, target, weight, avg_factor=7), expected)
    assert loss(pred, target, torch.zeros_like(weight), avg_factor=7) == 0
    loss(pred.to("meta"), target.to("meta"), weight.to("meta"), avg_factor=7)


def test_the_focal_loss_of_a_gpu_is_that_of_a_cpu():
    pred, target = 20 * torch.randn(40, 3, generator=DRAWN), torch.randint(0, 4, (40,), generator=DRAWN)
    weight = torch.rand(40, generator=DRAWN)
    assert sigmoid_focal_loss(pred, target, weight, avg_factor=3) == FocalLoss()(pred, target, weight, avg_factor=3)
