import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from timm.data import create_transform
from torchvision import transforms as T

from transfer.core.errors import UsageError
from transfer.core.seeding import seeded
from transfer.data.loading.augment import AugmentOptions, eval_transform, train_transform
from transfer.data.loading.bigvision import InceptionCrop, RandAugment
from transfer.data.loading.images import to_floats

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEIT = "rand-m9-mstd0.5-inc1"
PLAIN = {
    "augment": "timm", "crop_area": (0.08, 1.0), "crop_ratio": (3 / 4, 4 / 3), "interpolation": "bicubic", "flip": 0.5,
    "auto_augment": None, "color_jitter": 0.0, "erase": 0.0, "pad": 0, "randaug": None, "resize": None,
    "image_ops": "pil",
}  # fmt: skip
KINDS = {
    "timm": {"auto_augment": DEIT, "color_jitter": 0.3, "erase": 0.25},
    "pad": {"auto_augment": DEIT, "erase": 0.25, "pad": 4},
    "bigvision": {"interpolation": "bilinear", "randaug": (2, 15)},
    "crop": {},
}


def options(**values):
    return AugmentOptions(**{**PLAIN, **values})


def picture(W=100, H=80, seed=0):
    noise = np.random.default_rng(seed).integers(0, 256, (H // 4, W // 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((W, H), Image.Resampling.BICUBIC)


@pytest.fixture
def old_pillow(monkeypatch):
    """ImageOps.posterize as it was before Pillow 13, which refuses the 0 bits that timm may give."""
    table = [[value & ~(2 ** (8 - bits) - 1) for value in range(256)] * 3 for bits in range(9)]
    monkeypatch.setattr(ImageOps, "posterize", lambda image, bits: image.point(table[bits]))


@pytest.mark.parametrize(
    "values",
    [
        {"auto_augment": DEIT, "color_jitter": 0.3, "erase": 0.25},  # DeiT
        {"auto_augment": DEIT, "color_jitter": 0.4, "erase": 0.25, "interpolation": "random"},  # VOLO
        {"color_jitter": 0.4, "crop_area": (0.3, 0.9), "crop_ratio": (1.0, 1.0), "flip": 0.9},
        {"auto_augment": "augmix-m5-w4-d2", "flip": 0.0, "interpolation": "bilinear"},
        {"auto_augment": "v0", "erase": 1.0},
    ],
)
def test_normalised_it_equals_timm(old_pillow, values):
    """The same draws and, up to rounding, the same pixels as timm's pipeline, which erases after normalising."""
    chosen = options(**values)
    colors = {"color_jitter": chosen.color_jitter or None, "auto_augment": chosen.auto_augment, "hflip": chosen.flip}
    crop = {"scale": chosen.crop_area, "ratio": chosen.crop_ratio, "interpolation": chosen.interpolation}
    erase = {"re_prob": chosen.erase, "re_mode": "pixel", "re_count": 1}
    theirs = create_transform(64, is_training=True, mean=MEAN, std=STD, **colors, **crop, **erase)
    ours, normalise = train_transform(64, chosen, MEAN, STD), T.Normalize(MEAN, STD)
    for key in range(60):
        image = picture(seed=key)
        with seeded(key):
            expected = theirs(image)
        with seeded(key):
            got = ours(image)
        torch.testing.assert_close(normalise(to_floats(got)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("description", ["rand-m10-inc1", "v0"])
def test_posterize_without_bits_on_every_pillow(description):
    """Both descriptions reach 0 bits, which Pillow refuses from version 13 on."""
    transform = train_transform(16, options(auto_augment=description), MEAN, STD)
    image = picture(16, 16)
    for key in range(300):
        with seeded(key):
            transform(image)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_functions_of_the_seeds(kind):
    """Nothing is drawn but from the three generators that `seeded` sets, in this process or another."""
    transform = train_transform(32, options(augment=kind, **KINDS[kind]), MEAN, STD)
    sent = pickle.loads(pickle.dumps(transform))
    image, seen = picture(), []
    for key in range(8):
        with seeded(key):
            one = transform(image)
        with seeded(key):
            assert torch.equal(sent(image), one)
        assert one.shape == (3, 32, 32)
        assert one.dtype == (torch.float32 if KINDS[kind].get("erase") else torch.uint8)
        seen.append(one)
    assert all(not torch.equal(seen[0], other) for other in seen[1:])


@pytest.mark.parametrize("randaug", [None, (2, 15)])
def test_bigvision_crops_flips_and_augments(randaug):
    transform = train_transform(32, options(augment="bigvision", interpolation="bilinear", randaug=randaug), MEAN, STD)
    crop, flip = InceptionCrop(32, PLAIN["crop_area"], PLAIN["crop_ratio"]), T.RandomHorizontalFlip(0.5)
    for key in range(10):
        with seeded(key):
            expected = flip(crop(picture()))
            expected = T.ToTensor()(RandAugment(*randaug)(expected) if randaug else expected)
        with seeded(key):
            assert torch.equal(to_floats(transform(picture())), expected)


def test_erased_noise_is_that_of_the_backbone():
    """`pad` erases as `timm` does: noise around the mean, outside [0, 1] at times."""
    transform = train_transform(64, options(augment="pad", erase=1.0, flip=0.0), (0.9, 0.5, 0.1), STD)
    values = []
    for key in range(30):
        with seeded(key):
            got = transform(Image.new("RGB", (64, 64)))
        values.append(got.flatten(1)[:, (got != 0).any(0).flatten()])
    noise = torch.cat(values, 1)
    torch.testing.assert_close(noise.mean(1), torch.tensor((0.9, 0.5, 0.1)), atol=0.02, rtol=0)
    torch.testing.assert_close(noise.std(1), torch.tensor(STD), atol=0.02, rtol=0)
    assert noise.max() > 1.2


@pytest.mark.parametrize("resize", [None, 64, 56])
def test_evaluation_view(resize):
    """The shorter side to round(56 / 0.875) = 64 where nothing is said, then the centre."""
    expected = T.Compose([T.Resize(resize or 64, T.InterpolationMode.BICUBIC), T.CenterCrop(56), T.ToTensor()])
    for W, H in ((100, 80), (80, 120), (64, 64), (30, 41)):
        got = eval_transform(56, resize)(picture(W, H))
        assert torch.equal(to_floats(got), expected(picture(W, H)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"flip": 1.5}, "--flip 1.5: must be between 0 and 1"),
        ({"erase": float("nan")}, "--erase nan"),
        ({"crop_area": (0.5, 0.1)}, "--crop-area 0.5 0.1: .* the smaller value first"),
        ({"pad": 4}, "--pad: --augment timm does not use it; set `--pad 0`"),
        ({"randaug": (2, 10)}, "--randaug: --augment timm does not use it; set `--randaug None`"),
        ({"augment": "crop", "auto_augment": DEIT}, "--auto-augment: --augment crop does not use it"),
        ({"augment": "bigvision", "interpolation": "bilinear", "erase": 0.1}, "--erase: --augment bigvision"),
    ],
)
def test_options_that_cannot_be(values, message):
    with pytest.raises(UsageError, match=message):
        options(**values)


@pytest.mark.parametrize("description", ["rand-x9", "autumn"])
def test_unknown_auto_augment(description):
    with pytest.raises(UsageError, match=rf"--auto-augment {description}: .*rand-m9-mstd0\.5-inc1"):
        train_transform(32, options(auto_augment=description), MEAN, STD)
