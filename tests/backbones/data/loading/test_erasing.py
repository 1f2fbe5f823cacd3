import random

import pytest
import torch
from timm.data.random_erasing import RandomErasing as TimmErasing

from backbones.data.loading.erasing import DrawErasing, RandomErasing, erase_boxes
from backbones.data.loading.floats import to_floats
from backbones.runtime.seeding import seeded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("size", [(256, 128), (64, 32), (224, 224)])
def test_equals_erasing_after_normalising(size):
    """Normalised afterwards, the image is what timm's erasing makes of the normalised image."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    ours, theirs = RandomErasing(0.7, MEAN, STD), TimmErasing(0.7, mode="pixel", max_count=1, device="cpu")
    changed = 0
    for key in range(40):
        image = torch.rand(3, *size, generator=torch.Generator().manual_seed(key))
        with seeded(key):
            expected = theirs((image - mean) / std)
        with seeded(key):
            got = ours(image.clone())
        torch.testing.assert_close((got - mean) / std, expected, atol=1e-5, rtol=1e-5)
        changed += not torch.equal(got, image)
    assert 18 <= changed <= 37  # 28 expected


def test_boxes_drawn_for_the_device_are_those_of_the_loader():
    """The same boxes from the same seeds; noise of the same kind, which the seed in the box alone decides."""
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    plain, drawn = RandomErasing(0.6, MEAN, STD), DrawErasing(0.6)
    pixels = torch.full((3, 64, 48), 255, dtype=torch.uint8)
    images, boxes, expected = [], [], []
    for key in range(200):
        random.seed(key)
        expected.append(plain(torch.ones(3, 64, 48)))
        after = random.random()
        random.seed(key)
        torch.manual_seed(key)
        image, box = drawn(pixels)
        assert random.random() == after
        images.append(image)
        boxes.append(box)
    got = erase_boxes(to_floats(torch.stack(images)), torch.stack(boxes), mean, std)
    erased, wanted = (got != 1).any(1), (torch.stack(expected) != 1).any(1)
    assert torch.equal(erased, wanted)
    noise = ((got - mean) / std).permute(1, 0, 2, 3)[:, erased]
    assert noise.mean(1).abs().max() < 0.01
    assert (noise.std(1) - 1).abs().max() < 0.01
    again = erase_boxes(to_floats(torch.stack(images[50:60])), torch.stack(boxes[50:60]), mean, std)
    assert torch.equal(again, got[50:60])
