"""Many draws of each augmentation against as many of the reference implementation's, by other seeds."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision import transforms as T

from backbones.data.loading.erasing import erase_boxes
from backbones.data.loading.floats import to_floats
from backbones.data.loading.images import to_pixels
from backbones.pretrain.augment import train_transform
from backbones.pretrain.multicrop import MultiCrop
from backbones.runtime.seeding import restored_generators, seeded
from tests.backbones.pretrain.test_augment import DEIT, MEAN, STD, old_pillow, options, picture, timm_transform  # noqa: F401
from tests.backbones.pretrain.test_multicrop import published

DRAWS = 1000
SIZE = 32
RECIPES: dict[str, dict[str, Any]] = {
    "deit": {"auto_augment": DEIT, "erase": 0.25},
    "volo": {"auto_augment": DEIT, "erase": 0.25, "interpolation": "random"},
    "jitter": {"color_jitter": 0.4, "crop_area": (0.3, 0.9)},
    "linear": {"augment": "crop"},
}
AREAS = {"global": (0.4, 1.0), "local": (0.05, 0.4)}


@cache
def image() -> Image.Image:
    """Another left half than right half, other colours, fine and coarse structure."""
    coarse = np.asarray(picture(8, 6).resize((64, 48), Image.Resampling.BICUBIC)).astype(int)
    fine = np.asarray(picture(64, 48, seed=1)).astype(int) // 4 - 32
    light = np.linspace(-60, 40, 64)[None, :, None] * np.array([1.0, 0.4, -0.5])
    return Image.fromarray((coarse + fine + light).clip(0, 255).astype(np.uint8))


def theirs(recipe: str) -> Callable[[Image.Image], Tensor]:
    """The reference's augmentation: timm's, torchvision's, or DINO's as its authors published it."""
    if recipe in AREAS:
        first = recipe == "global"
        return lambda image: published(image, SIZE, AREAS[recipe], 0.1 if first else 0.5, 0.2 if first else 0.0)
    if recipe == "linear":
        crop = T.RandomResizedCrop(SIZE, interpolation=T.InterpolationMode.BICUBIC)
        return T.Compose([crop, T.RandomHorizontalFlip(), T.ToTensor()])
    floats = timm_transform(SIZE, options(**RECIPES[recipe]))
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return lambda image: floats(image) * std + mean


def ours(recipe: str, image_ops: str) -> Callable[[Any], Tensor]:
    """The same by this package; of multi-crop the second global crop or the first local one."""
    if recipe in AREAS:
        size = (SIZE, AREAS["global"], SIZE, AREAS["local"], 1)
        crops = MultiCrop(*size, image_ops=image_ops)  # type: ignore[arg-type]
        return lambda image: to_floats(crops(image)[1 if recipe == "global" else 2])
    transform = train_transform(SIZE, options(image_ops=image_ops, **RECIPES[recipe]), MEAN, STD)
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)

    def view(image: Any) -> Tensor:
        result = transform(image)
        if not isinstance(result, tuple):
            return to_floats(result)
        return erase_boxes(to_floats(result[0])[None], result[1][None], mean, std)[0]

    return view


def statistics(view: Callable[[Any], Tensor], source: Any, seed: int) -> dict[str, np.ndarray]:
    """What can be told of `DRAWS` views: light, contrast, colour, side, fine structure, and values outside [0, 1]."""
    rows = []
    with restored_generators():
        views = [_drawn(view, source, seed, draw) for draw in range(DRAWS)]
    for pixels in views:
        red, _, blue = pixels.mean((1, 2)).tolist()
        side = float(pixels[..., : SIZE // 2].mean() - pixels[..., SIZE // 2 :].mean())
        structure = float(pixels.diff(dim=-1).abs().mean())
        outside = float(((pixels < -1e-6) | (pixels > 1 + 1e-6)).float().mean())
        rows.append((float(pixels.mean()), float(pixels.std()), red - blue, side, structure, outside))
    return dict(zip(("mean", "spread", "colour", "side", "structure", "outside"), np.array(rows).T, strict=True))


def _drawn(view: Callable[[Any], Tensor], source: Any, *key: int) -> Tensor:
    with seeded(*key):
        return view(source)


@cache
def reference(recipe: str) -> dict[str, np.ndarray]:
    return statistics(theirs(recipe), image(), 1)


@pytest.mark.usefixtures("old_pillow")  # timm gives Pillow 13 what it refuses
@pytest.mark.parametrize("recipe", [*RECIPES, *AREAS])
@pytest.mark.parametrize("image_ops", ["pil", "fast"])
def test_draws_are_distributed_as_the_references(recipe: str, image_ops: str) -> None:
    source = to_pixels(image()) if image_ops == "fast" else image()
    got = statistics(ours(recipe, image_ops), source, 2)
    p = {name: ks_2samp(got[name], values).pvalue for name, values in reference(recipe).items()}
    assert min(p.values()) > 0.01, p
