"""RoIAlign, called through mmcv, against its definition: bilinear samples, pooled bin by bin, in float64."""

import math

import pytest
import torch

from tasks.detection import mmlab, roi_align

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


def plain_roi_align(features, rois, size, scale, ratio, mode, aligned):
    pooled = features.new_zeros(len(rois), features.shape[1], *size)
    for n, roi in enumerate(rois):
        for i, row in enumerate(bin_samples(roi, size, scale, ratio, aligned)):
            for j, places in enumerate(row):
                if places:
                    values = torch.stack([value_at(features[int(roi[0])], y, x) for y, x in places])
                    pooled[n, :, i, j] = values.mean(0) if mode == "avg" else values.max(0).values
    return pooled


def with_gradient(align, features, upstream=None):
    """The output, and the gradient of its product with fixed random numbers."""
    leaf = features.clone().requires_grad_()
    output = align(leaf)
    noise = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (output * noise.to(output.dtype)).sum().backward()
    return output.detach(), leaf.grad


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 1, 2, 3])
@pytest.mark.parametrize(("size", "scale"), [((2, 3), 1.0), ((4, 1), 0.5)])
def test_values_and_gradients(size, scale, ratio, mode, aligned):
    layer = RoIAlign(size, scale, ratio, mode, aligned)
    found = with_gradient(lambda leaf: layer(leaf, ROIS), maps())
    expected = with_gradient(lambda leaf: plain_roi_align(leaf, ROIS, size, scale, ratio, mode, aligned), maps())
    torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ratio", [0, 2])
def test_places_of_the_maxima(ratio):
    features, rois = maps(), ROIS[[0, 2, 5]]
    pooled, y, x = (torch.zeros(3, 3, 2, 3, dtype=torch.float64) for _ in range(3))
    roi_align.roi_align_forward(features, rois, pooled, y, x, 2, 3, 1.0, ratio, 0, True)
    for n, roi in enumerate(rois):
        for i, row in enumerate(bin_samples(roi, (2, 3), 1.0, ratio, True)):
            for j, places in enumerate(row):
                for channel, plane in enumerate(features[int(roi[0])]):
                    values = [value_at(plane[None], *place).item() for place in places]
                    place = places[values.index(max(values))] if places else (-1, -1)
                    assert (y[n, channel, i, j].item(), x[n, channel, i, j].item()) == pytest.approx(place)


def test_max_pooling_in_parts_is_the_same(monkeypatch):
    layer = RoIAlign((2, 3), 1.0, 0, "max", True)
    whole = layer(maps(), ROIS)
    monkeypatch.setattr(roi_align, "SAMPLES_AT_ONCE", 1)
    torch.testing.assert_close(layer(maps(), ROIS), whole, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_no_rois(mode):
    output, gradient = with_gradient(lambda leaf: RoIAlign((2, 3), 1.0, 0, mode)(leaf, ROIS[:0]), maps())
    assert output.shape == (0, 3, 2, 3)
    assert gradient.abs().sum() == 0


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precisions(dtype, mode):
    rois = ROIS[[0, 2, 4]].round()  # exact in all of them
    features = maps().to(dtype)
    layer = RoIAlign((2, 3), 0.5, 2, mode, True)
    found = with_gradient(lambda leaf: layer(leaf, rois.to(dtype)), features)
    expected = with_gradient(lambda leaf: layer(leaf, rois), features.double())
    step = torch.finfo(dtype).eps
    for one, other in zip(found, expected):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=4 * step, atol=8 * step)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_autocast_leaves_float32_alone(mode):
    features, rois = maps().float(), ROIS.float()
    layer = RoIAlign((2, 3), 0.5, 2, mode, True)
    plain = with_gradient(lambda leaf: layer(leaf, rois), features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = with_gradient(lambda leaf: layer(leaf, rois), features)
    for one, other in zip(found, plain):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("aligned", [True, False])
def test_a_roi_that_is_not_finite_gives_nan_and_spares_the_others(aligned, mode):
    rois = torch.cat([ROIS, ROIS[:2]])
    rois[6, 3], rois[7, 2] = math.nan, math.inf
    layer = RoIAlign((2, 3), 1.0, 0, mode, aligned)
    output = layer(maps(), rois)
    assert output[6:].isnan().all()
    torch.testing.assert_close(output[:6], layer(maps(), ROIS), rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_a_roi_inside_out_is_empty(mode):
    rois = torch.tensor([[0, 8.0, 1, 3, 6], [0, 3, 6, 8, 1], [0, 8, 6, 3, 1]], dtype=torch.float64)
    output, gradient = with_gradient(lambda leaf: RoIAlign((2, 3), 1.0, 0, mode, True)(leaf, rois), maps())
    assert output.abs().sum() == 0
    assert gradient.abs().sum() == 0


@pytest.mark.parametrize("pool_mode", [0, 1])
def test_gradients_are_added(pool_mode):
    """Operators of `mmcv._ext` add to the tensor that they are given."""
    features, rois = maps(), ROIS[:1]
    pooled, y, x, ones = (torch.ones(1, 3, 2, 3, dtype=torch.float64) for _ in range(4))
    rest = (2, 3, 1.0, 2, pool_mode, True)
    roi_align.roi_align_forward(features, rois, pooled, y, x, *rest)
    once = torch.zeros_like(features)
    roi_align.roi_align_backward(ones, rois, y, x, once, *rest)
    twice = once.clone()
    roi_align.roi_align_backward(ones, rois, y, x, twice, *rest)
    assert once.sum().item() == pytest.approx(18)  # all samples lie on the map, each bin passes on its 1
    torch.testing.assert_close(twice, 2 * once)


@pytest.mark.parametrize("ratio", [0, 2])
def test_both_ways_of_mean_pooling_agree(monkeypatch, ratio):
    """CPUs take products; GPUs, and RoIs with too many samples, torchvision's kernels."""

    def pooled():
        leaf = maps().float().requires_grad_()
        output = RoIAlign((3, 2), 0.5, ratio)(leaf, ROIS.float())
        output.square().sum().backward()
        return output.detach(), leaf.grad

    products = pooled()
    monkeypatch.setattr(roi_align, "_axis_weights", lambda *_: None)
    for one, other in zip(products, pooled(), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_are_added_to_what_is_there_in_any_layout():
    gradient = torch.ones(1, 2, 4, 6)[..., ::2]
    rois, grad = torch.tensor([[0.0, 0, 0, 3, 4]]), torch.ones(1, 2, 2, 2)
    roi_align.roi_align_backward(grad, rois, grad, grad, gradient, 2, 2, 1.0, 0, 1, True)
    assert float(gradient.sum()) == pytest.approx(2 * 12 + 8)  # each mean hands on what it gets
