"""`nms`, called through mmcv, against its definition in plain Python."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from tasks.detect import mmlab

mmlab.load()

from mmcv.ops import batched_nms, nms  # noqa: E402


def some_boxes(count, seed, most=12):
    """Integer boxes, small enough for many equal IoUs, and scores that all differ."""
    rng = np.random.default_rng(seed)
    near = rng.integers(0, most, (count, 2))
    boxes = np.concatenate([near, near + rng.integers(0, most, (count, 2))], axis=1)
    return boxes.tolist(), ((rng.permutation(count) + 1) / (count + 1)).tolist()


def iou(one, other, offset):
    """Exact; 0 of two boxes without area."""
    width = min(one[2], other[2]) - max(one[0], other[0]) + offset
    height = min(one[3], other[3]) - max(one[1], other[1]) + offset
    both = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (one, other)]
    return Fraction(both, sum(areas) - both) if sum(areas) > both else Fraction(0)


def plain_nms(boxes, scores, threshold, offset):
    kept = []
    for index in sorted(range(len(boxes)), key=lambda index: -scores[index]):
        if all(iou(boxes[index], boxes[better], offset) <= Fraction(threshold) for better in kept):
            kept.append(index)
    return kept


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("threshold", ["0", "0.5", "0.6"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nms(threshold, offset, dtype):
    for seed in range(5):
        boxes, scores = some_boxes(60, seed)
        given = torch.tensor(boxes, dtype=dtype), torch.tensor(scores, dtype=dtype)
        dets, kept = nms(*given, float(threshold), offset=offset)
        assert kept.tolist() == plain_nms(boxes, scores, threshold, offset)
        assert dets.dtype == dtype
        torch.testing.assert_close(dets, torch.cat([given[0], given[1][:, None]], 1)[kept])


def test_nms_of_equal_scores_keeps_the_first():
    boxes = torch.tensor([[0.0, 0, 4, 4]] * 3 + [[9, 9, 12, 12]])
    assert nms(boxes, torch.tensor([0.5, 0.5, 0.5, 0.5]), 0.5)[1].tolist() == [0, 3]


def test_no_boxes():
    nothing = torch.zeros(0, 4), torch.zeros(0)
    for dets, kept in (nms(*nothing, 0.5), nms(*nothing, 0.5, offset=1)):
        assert dets.shape == (0, 5)
        assert kept.shape == (0,)
        assert kept.dtype == torch.int64


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
    classes = [index % 3 for index in range(80)]
    given = torch.tensor(boxes, dtype=torch.float32), torch.tensor(scores), torch.tensor(classes)
    _, kept = batched_nms(*given, {"type": "nms", "iou_threshold": 0.5})
    expected = set()
    for one in range(3):
        members = [index for index in range(80) if classes[index] == one]
        kept_of_class = plain_nms([boxes[i] for i in members], [scores[i] for i in members], "0.5", 0)
        expected |= {members[index] for index in kept_of_class}
    assert kept.tolist() == sorted(expected, key=lambda index: -scores[index])
