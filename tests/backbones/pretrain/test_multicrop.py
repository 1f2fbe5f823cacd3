import random

import pytest
import torch
from PIL import ImageFilter, ImageOps
from torchvision import transforms as T

from backbones.pretrain.dino.multicrop import MultiCrop
from tests.backbones.pretrain.dino_support import dino_options
from tests.backbones.pretrain.test_augment import picture
from transfer.core.seeding import seeded
from transfer.data.loading.images import to_floats


def published(image, size, area, radii, blur, solarize=0.0):
    """One crop as the paper's code draws it."""
    bicubic = T.InterpolationMode.BICUBIC
    image = T.RandomResizedCrop(size, area, interpolation=bicubic)(image)
    image = T.RandomHorizontalFlip(0.5)(image)
    image = T.RandomApply([T.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8)(image)
    image = T.RandomGrayscale(p=0.2)(image)
    if radii and random.random() <= blur:
        image = image.filter(ImageFilter.GaussianBlur(radius=random.uniform(*radii)))
    if solarize and random.random() < solarize:
        image = ImageOps.solarize(image)
    return T.ToTensor()(image)


@pytest.mark.parametrize(("local_crops", "radii"), [(0, (0.1, 2.0)), (3, (0.1, 0.5)), (3, None)])
def test_equals_the_published_augmentation(local_crops, radii):
    image = picture(120, 90)
    crops = MultiCrop(dino_options(size=56, resize=None, local_size=24, local_crops=local_crops, blur=radii))
    for key in range(12):
        with seeded(key):
            expected = [published(image, 56, (0.4, 1.0), radii, *shares) for shares in ((1.0,), (0.1, 0.2))]
            expected += [published(image, 24, (0.05, 0.4), radii, 0.5) for _ in range(local_crops)]
        with seeded(key):
            got = crops(image)
        assert [view.shape for view in got] == [(3, 56, 56)] * 2 + [(3, 24, 24)] * local_crops
        assert all(torch.equal(to_floats(a), b) for a, b in zip(got, expected, strict=True))
