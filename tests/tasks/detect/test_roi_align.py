"""RoIAlign, called through mmcv, against torchvision's with its own gradient, in float64."""

import math

import pytest
import torch
import torchvision

from tasks.detect import mmlab

mmlab.load()

from mmcv.ops import RoIAlign  # noqa: E402

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
