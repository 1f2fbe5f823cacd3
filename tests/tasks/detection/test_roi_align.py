"""RoIAlign, called through mmcv, against its definition: bilinear samples, pooled bin by bin, in float64."""

import math

import pytest
import torch

from tasks.detection import mmlab

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


def value_at(plane, y, x):
    """[C] the bilinear value of [C, H, W] at a place: every pixel weighs by its distance, at most 1."""
    height, width = plane.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return plane.new_zeros(len(plane))
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    rows = (1 - (torch.arange(height, dtype=plane.dtype) - y).abs()).clamp(min=0)
    columns = (1 - (torch.arange(width, dtype=plane.dtype) - x).abs()).clamp(min=0)
    return plane @ columns @ rows


def bin_samples(roi, size, scale, ratio, aligned):
    """For each bin [h][w] the places (y, x) of its samples."""
    shift = 0.5 if aligned else 0.0
    left, top, right, bottom = (side * scale - shift for side in roi[1:].tolist())
    height, width = bottom - top, right - left
    if not aligned:
        height, width = max(height, 1.0), max(width, 1.0)
    height, width = height / size[0], width / size[1]
    down, across = (ratio, ratio) if ratio > 0 else (math.ceil(height), math.ceil(width))
    return [
        [
            [
                (top + (i + (k + 0.5) / down) * height, left + (j + (m + 0.5) / across) * width)
                for k in range(down)
                for m in range(across)
            ]
            for j in range(size[1])
        ]
        for i in range(size[0])
    ]


def plain_roi_align(features, rois, size, scale, ratio, aligned):
    pooled = features.new_zeros(len(rois), features.shape[1], *size)
    for n, roi in enumerate(rois):
        for i, row in enumerate(bin_samples(roi, size, scale, ratio, aligned)):
            for j, places in enumerate(row):
                if places:
                    values = torch.stack([value_at(features[int(roi[0])], y, x) for y, x in places])
                    pooled[n, :, i, j] = values.mean(0)
    return pooled


def with_gradient(align, features, upstream=None):
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
    expected = with_gradient(lambda leaf: plain_roi_align(leaf, ROIS, size, scale, ratio, aligned), maps())
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


def test_max_pooling_is_not_here():
    with pytest.raises(NotImplementedError, match="pool_mode 'avg'"):
        RoIAlign((2, 3), 1.0, 0, "max")(maps(), ROIS)
