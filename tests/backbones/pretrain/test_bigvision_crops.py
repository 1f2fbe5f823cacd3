import random

import numpy as np
import pytest
import torch
from PIL import Image

from backbones.pretrain.bigvision import AreaCrop, InceptionCrop, SquashCrop


def picture(W, H):
    noise = np.random.default_rng(W + H).integers(0, 256, (H, W, 3), dtype=np.uint8)
    return Image.fromarray(noise)


@pytest.mark.parametrize(("W", "H"), [(400, 300), (300, 400), (32, 32), (640, 200), (7, 5)])
def test_boxes(W, H):
    """Area and width / height are in their ranges up to a rounded side, and the box is inside."""
    crop = InceptionCrop(16, (0.05, 1.0), (0.75, 1.33))
    random.seed(0)
    for left, top, w, h in (crop.draw(W, H) for _ in range(500)):
        assert 0 <= left <= left + w <= W
        assert 0 <= top <= top + h <= H
        if (w, h) != (W, H):
            assert 0.05 * W * H <= w * h <= W * H
            assert 0.75 * h - 0.5 <= w <= 1.33 * h + 0.5


@pytest.mark.parametrize(("W", "H", "size"), [(200, 150, 32), (20, 30, 64), (48, 48, 48)])
def test_resized_without_antialias(W, H, size):
    image = picture(W, H)
    crop = InceptionCrop(size, (0.2, 1.0), (0.75, 1.33))
    for seed in range(5):
        random.seed(seed)
        left, top, w, h = crop.draw(W, H)
        random.seed(seed)
        got = np.asarray(crop(image)).astype(int)
        part = torch.tensor(np.asarray(image)).permute(2, 0, 1)[None, :, top : top + h, left : left + w].double()
        plain = torch.nn.functional.interpolate(part, (size, size), mode="bilinear", antialias=False)
        difference = got - plain[0].permute(1, 2, 0).numpy()
        assert difference.max() < 1e-6  # truncated, never rounded up
        assert difference.min() > -1 - 1e-6


@pytest.mark.parametrize(("W", "H", "size", "resize"), [(40, 30, 14, 16), (30, 41, 20, 20), (9, 8, 20, 24)])
def test_area_averages(W, H, size, resize):
    """Every pixel is the mean of the part of the image that it covers."""
    image = picture(W, H)
    x = np.asarray(image).astype(np.float64)
    w, h = round(W * resize / min(W, H)), round(H * resize / min(W, H))
    fine = x.repeat(h, 0).repeat(w, 1)  # H h x W w cells: each pixel of the result covers H x W of them
    plain = fine.reshape(h, H, w, W, 3).mean((1, 3))
    top, left = (h - size) // 2, (w - size) // 2
    got = np.asarray(AreaCrop(size, resize)(image)).astype(int)
    assert got.shape == (size, size, 3)
    difference = got - plain[top : top + size, left : left + size]
    assert difference.max() < 2e-3
    assert difference.min() > -1 - 2e-3


def test_the_squashed_view_is_bilinear_without_antialias() -> None:
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (50, 90, 3), dtype=np.uint8))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].double()
    resized = torch.nn.functional.interpolate(pixels, (32, 32), mode="bilinear", antialias=False, align_corners=False)
    expected = resized[0, :, 4:28, 4:28].permute(1, 2, 0).numpy()
    seen = np.asarray(SquashCrop(24, 32)(image)).astype(float)
    assert ((expected - 1 - 1e-4 < seen) & (seen <= expected + 1e-4)).all(), "truncated, not rounded"
