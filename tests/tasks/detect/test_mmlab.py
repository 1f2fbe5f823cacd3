"""mmdetection over the bridge: it imports in silence, trains and predicts.

`nms`, called through mmcv, against its definition in plain Python; RoIAlign against torchvision's with its own
gradient, in float64; assignment, sampling and losses of boxes: equal to the bit to mmdetection's own, on a device that
cannot be read.
"""

import importlib
import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from torch.nn.functional import smooth_l1_loss

from tasks.detect import mmlab
from transfer.core.errors import UserError

mmlab.load()

from mmcv.ops import RoIAlign, batched_nms, deform_conv2d, nms  # noqa: E402
from mmdet.models.losses import FocalLoss, L1Loss, SmoothL1Loss, sigmoid_focal_loss  # noqa: E402
from mmdet.models.task_modules import AssignResult, MaxIoUAssigner, RandomSampler  # noqa: E402
from mmdet.models.task_modules.samplers.base_sampler import BaseSampler  # noqa: E402
from mmdet.structures.mask import BitmapMasks  # noqa: E402
from mmengine.config import ConfigDict  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402

from tasks.detect import targets  # noqa: E402

SILENT = """
from tasks.detect import mmlab
mmlab.load()
mmlab.load()
from mmengine.registry import DefaultScope
from mmdet.datasets.transforms import RandomCrop
print(mmlab.ops_source(), DefaultScope.get_current_instance().scope_name)
"""


@pytest.mark.nightly
def test_import_is_silent():
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("bridge mmdet\n", "")


def test_compiled_operators_are_found_without_importing_them(monkeypatch, tmp_path):
    (tmp_path / "mmcv").mkdir()
    for name in ("__init__", "_ext"):
        (tmp_path / "mmcv" / f"{name}.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mmcv", "mmcv._ext"):
        monkeypatch.delitem(sys.modules, name)
    assert mmlab.ops_source() == "compiled"
    (tmp_path / "mmcv/_ext.py").unlink()
    assert mmlab.ops_source() == "bridge"


def test_missing_packages_are_named_with_what_installs_them(monkeypatch):
    find = mmlab.find_spec
    monkeypatch.setattr(mmlab, "find_spec", lambda name: None if name in ("mmcv", "mmdet") else find(name))
    for name in ("mmcv", "mmdet"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"mmcv, mmdet: pip install -e '\.\[detection\]'"):
        mmlab.load()


@pytest.mark.parametrize("official", ["mmcv-full", "mmdet"])
def test_official_packages_beside_the_fork_are_an_error(official, monkeypatch, tmp_path):
    folder = tmp_path / f"{official.replace('-', '_')}-2.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {official}\nVersion: 2.1.0\n")
    (folder / "top_level.txt").write_text(official.removesuffix("-full"))
    monkeypatch.syspath_prepend(tmp_path)
    mmlab._owners.cache_clear()
    with pytest.raises(UserError, match=rf"onedl-\w+ and {official} are both installed|{official} and onedl"):
        mmlab.load()
    mmlab._owners.cache_clear()


def test_a_missing_operator_names_itself():
    with pytest.raises(UserError, match="operator 'deform_conv_forward' needs a compiled mmcv"):
        deform_conv2d(torch.zeros(1, 3, 8, 8), torch.zeros(1, 18, 6, 6), torch.zeros(4, 3, 3, 3))


@pytest.mark.parametrize("name", ["nms", "roi_align"])
def test_operators_are_those_that_mmcv_asks_for(name):
    """A new version of mmcv that calls another operator in these files is noticed here."""
    source = importlib.import_module(f"mmcv.ops.{name}").__file__
    with open(source, encoding="utf-8") as file:  # noqa: PTH123
        called = {part.split("(")[0] for part in file.read().split("ext_module.")[1:]}
    unused = {"nms_match", "nms_rotated", "nms_quadri", "softnms"}
    assert called - set(mmlab.OPS) <= unused


def some_boxes(count, seed, most=12):
    """Integer boxes, small enough for many equal IoUs, and scores that all differ."""
    rng = np.random.default_rng(seed)
    near = rng.integers(0, most, (count, 2))
    boxes = np.concatenate([near, near + rng.integers(0, most, (count, 2))], axis=1)
    return boxes.tolist(), ((rng.permutation(count) + 1) / (count + 1)).tolist()


def plain_nms(boxes, scores, threshold, offset):
    corners = torch.tensor(boxes, dtype=torch.float64).view(-1, 4) + torch.tensor([0, 0, offset, offset])
    overlaps = torchvision.ops.box_iou(corners, corners).nan_to_num().tolist()  # 0 of two boxes without area
    kept = []
    for index in sorted(range(len(boxes)), key=lambda index: -scores[index]):
        if all(overlaps[index][better] <= threshold for better in kept):
            kept.append(index)
    return kept


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nms(threshold, offset, dtype):
    equal = [[0, 0, 4, 4]] * 3 + [[9, 9, 12, 12]], [0.5] * 4
    for boxes, scores in (*(some_boxes(60, seed) for seed in range(5)), equal, ([], [])):
        given = torch.tensor(boxes, dtype=dtype).view(-1, 4), torch.tensor(scores, dtype=dtype)
        dets, kept = nms(*given, threshold, offset=offset)
        assert kept.tolist() == plain_nms(boxes, scores, threshold, offset)
        assert (dets.dtype, kept.dtype) == (dtype, torch.int64)
        torch.testing.assert_close(dets, torch.cat([given[0], given[1][:, None]], 1)[kept])


@pytest.mark.parametrize(("classes", "side"), [(80, 4), (1203, 32)])
def test_late_classes_are_suppressed_as_the_first_one(classes, side):
    drawn = torch.Generator().manual_seed(0)
    corners = 760 + 200 * torch.rand(20, 2, generator=drawn)[torch.randint(0, 20, (600,), generator=drawn)]
    corners += 0.3 * side * torch.randn(600, 2, generator=drawn)
    boxes = torch.cat([corners, corners + side * (0.2 * torch.randn(600, 2, generator=drawn)).exp()], dim=1)
    scores = torch.rand(600, generator=drawn)
    found = [
        batched_nms(boxes, scores, torch.full((600,), one), {"type": "nms", "iou_threshold": 0.5})
        for one in (0, classes - 1)
    ]
    assert found[0][1].tolist() == found[1][1].tolist()
    assert found[0][0].dtype == torch.float32
    torch.testing.assert_close(found[1][0], torch.cat([boxes, scores[:, None]], dim=1)[found[1][1]], rtol=0, atol=0)


def test_classes_do_not_suppress_each_other():
    boxes, scores = some_boxes(80, 4)
    given = torch.tensor(boxes, dtype=torch.float32), torch.tensor(scores), torch.arange(80) % 3
    _, kept = batched_nms(*given, {"type": "nms", "iou_threshold": 0.5})
    assert torch.equal(kept, torchvision.ops.batched_nms(*given, 0.5))


ROIS = torch.tensor(
    [
        [0, 2.0, 3.0, 9.0, 8.5],
        [1, 0.3, 0.4, 0.9, 0.6],  # smaller than a pixel
        [1, -9.0, -7.2, 30.0, 29.0],  # beyond the map on all sides
        [0, 40.0, 40.0, 50.0, 55.0],  # outside
        [1, -0.75, 2.0, 13.0, 4.0],  # over one border
        [0, 4.0, 4.0, 4.0, 9.0],  # without area
    ],
    dtype=torch.float64,
)


def maps(seed=0):
    return torch.randn(2, 3, 9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_gradient(align, features):
    """The output, and the gradient of its product with fixed random numbers."""
    leaf = features.clone().requires_grad_()
    output = align(leaf)
    noise = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (output * noise.to(output.dtype)).sum().backward()
    return output.detach(), leaf.grad


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize(("size", "scale"), [((2, 3), 1.0), ((4, 1), 0.5)])
def test_values_and_gradients(size, scale, ratio, aligned):
    layer = RoIAlign(size, scale, ratio, "avg", aligned)
    found = with_gradient(lambda leaf: layer(leaf, ROIS), maps())
    peer = torchvision.ops.RoIAlign(size, scale, ratio, aligned)
    expected = with_gradient(lambda leaf: peer(leaf, ROIS), maps())
    torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precisions(dtype):
    rois = ROIS[[0, 2, 4]].round()  # exact in all of them
    features = maps().to(dtype)
    layer = RoIAlign((2, 3), 0.5, 2, "avg", True)
    found = with_gradient(lambda leaf: layer(leaf, rois.to(dtype)), features)
    expected = with_gradient(lambda leaf: layer(leaf, rois), features.double())
    step = torch.finfo(dtype).eps
    for one, other in zip(found, expected):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=4 * step, atol=8 * step)


@pytest.mark.parametrize("aligned", [True, False])
def test_a_roi_that_is_not_finite_gives_nan_and_spares_the_others(aligned):
    rois = torch.cat([ROIS, ROIS[:2]])
    rois[6, 3], rois[7, 2] = math.nan, math.inf
    layer = RoIAlign((2, 3), 1.0, 0, "avg", aligned)
    output = layer(maps(), rois)
    assert output[6:].isnan().all()
    torch.testing.assert_close(output[:6], layer(maps(), ROIS), rtol=0, atol=0)


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
    difference = smooth_l1_loss(pred, target, reduction="none", beta=getattr(loss, "beta", 0.0))
    expected = loss.loss_weight * (difference * weight).sum() / 7
    torch.testing.assert_close(loss(pred, target, weight, avg_factor=7), expected)
    assert loss(pred, target, torch.zeros_like(weight), avg_factor=7) == 0
    loss(pred.to("meta"), target.to("meta"), weight.to("meta"), avg_factor=7)


def test_the_focal_loss_of_a_gpu_is_that_of_a_cpu():
    pred, target = 20 * torch.randn(40, 3, generator=DRAWN), torch.randint(0, 4, (40,), generator=DRAWN)
    weight = torch.rand(40, generator=DRAWN)
    assert sigmoid_focal_loss(pred, target, weight, avg_factor=3) == FocalLoss()(pred, target, weight, avg_factor=3)
