import pytest
import torch
from timm.data.random_erasing import RandomErasing as TimmErasing

from backbones.data.loading.images import RandomErasing
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
