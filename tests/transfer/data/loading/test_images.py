from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.random_erasing import RandomErasing as TimmErasing
from torchvision import transforms as v1

from transfer.core.seeding import seeded
from transfer.data.loading.images import collate_boxes, erased, reid_test_transform, reid_train_transform

NOISE = np.random.default_rng(0).integers(0, 256, (6, 16, 8, 3), dtype=np.uint8)
IMAGES = [Image.fromarray(pixels).resize((64, 128), Image.Resampling.BICUBIC) for pixels in NOISE]


@pytest.mark.parametrize("size", [(256, 128), (64, 32), (224, 224)])
def test_train_transform_equals_the_published_pipeline(size):
    """The same draws as TransReID's composition of torchvision and timm, which normalises before it erases."""
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
    published = v1.Compose(
        [
            v1.Resize(size, interpolation=v1.InterpolationMode.BICUBIC),
            v1.RandomHorizontalFlip(0.5),
            v1.Pad(10),
            v1.RandomCrop(size),
            v1.ToTensor(),
            v1.Normalize(mean, std),
            TimmErasing(0.5, mode="pixel", max_count=1, device="cpu"),
        ]
    )
    ours = reid_train_transform(SimpleNamespace(size=size, flip=0.5, pad=10, erase=0.5), mean, std)
    normalise, samples, wanted = v1.Normalize(mean, std), [], []
    for number, image in enumerate(IMAGES * 3):
        with seeded(number):
            expected = published(image)
        with seeded(number):
            samples.append((ours(image), torch.tensor(number)))
        wanted.append(expected)
    (pixels, boxes, noise), labels = collate_boxes(samples)
    assert pixels.dtype == torch.uint8, "bytes travel to the model"
    assert labels.tolist() == list(range(len(samples)))
    got = normalise(erased(pixels, boxes, noise))
    torch.testing.assert_close(got, torch.stack(wanted), atol=1e-5, rtol=1e-5)


def test_test_transform_equals_torchvision():
    expected = v1.Compose([v1.Resize((256, 128)), v1.ToTensor()])
    for image in IMAGES:
        torch.testing.assert_close(reid_test_transform((256, 128))(image), expected(image), atol=1e-6, rtol=0)
