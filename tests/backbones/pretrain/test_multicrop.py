import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as T

from backbones.pretrain.dino.multicrop import MultiCrop
from transfer.core.seeding import seeded
from transfer.data.loading.images import to_floats


@pytest.fixture
def image():
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((120, 90), Image.Resampling.BICUBIC)


def published(image, size, area, blur, solarize=0.0):
    """One crop as the paper's code draws it."""
    bicubic = T.InterpolationMode.BICUBIC
    image = T.RandomResizedCrop(size, area, interpolation=bicubic)(image)
    image = T.RandomHorizontalFlip(0.5)(image)
    image = T.RandomApply([T.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8)(image)
    image = T.RandomGrayscale(p=0.2)(image)
    if random.random() <= blur:
        image = image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))
    if solarize and random.random() < solarize:
        image = ImageOps.solarize(image)
    return T.ToTensor()(image)


@pytest.mark.parametrize("local_crops", [0, 3])
def test_equals_the_published_augmentation(image, local_crops):
    crops = MultiCrop(56, (0.4, 1.0), 24, (0.05, 0.4), local_crops)
    for key in range(12):
        with seeded(key):
            expected = [published(image, 56, (0.4, 1.0), 1.0), published(image, 56, (0.4, 1.0), 0.1, 0.2)]
            expected += [published(image, 24, (0.05, 0.4), 0.5) for _ in range(local_crops)]
        with seeded(key):
            got = crops(image)
        assert [view.shape for view in got] == [(3, 56, 56)] * 2 + [(3, 24, 24)] * local_crops
        assert all(torch.equal(to_floats(a), b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("blur", [None, (0.1, 0.5)])
def test_blur_is_an_argument(image, monkeypatch, blur):
    radii = []
    plain = ImageFilter.GaussianBlur
    monkeypatch.setattr(ImageFilter, "GaussianBlur", lambda radius: radii.append(radius) or plain(radius))
    crops = MultiCrop(32, (0.4, 1.0), 16, (0.05, 0.4), 4, blur=blur)
    for key in range(20):
        with seeded(key):
            crops(image)
    if blur is None:
        assert not radii
    else:
        assert 45 <= len(radii) <= 80  # 62 expected: 20 + 2 + 40
        assert blur[0] <= min(radii) < max(radii) <= blur[1]
