import pickle
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from timm.data import create_transform
from torchvision import transforms as T

from backbones.data.loading.floats import to_floats
from backbones.engine.options import check_ranges
from backbones.errors import UsageError
from backbones.pretrain.augment import (
    AugmentOptions,
    PaddedCrop,
    eval_transform,
    posterize,
    shorter_side,
    train_transform,
)
from backbones.pretrain.bigvision_crops import AreaCrop, InceptionCrop
from backbones.pretrain.bigvision_randaugment import RandAugment
from backbones.pretrain.options import MixOptions
from backbones.runtime.seeding import seeded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEIT = "rand-m9-mstd0.5-inc1"
PLAIN = {
    "augment": "timm",
    "crop_area": (0.08, 1.0),
    "crop_ratio": (3 / 4, 4 / 3),
    "interpolation": "bicubic",
    "flip": 0.5,
    "auto_augment": None,
    "color_jitter": 0.0,
    "erase": 0.0,
    "pad": 0,
    "randaug": None,
    "resize": None,
    "image_ops": "pil",
}
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


def timm_transform(size, chosen):
    """timm's training transform, PIL image -> normalised floats, by our options."""
    return create_transform(
        size,
        is_training=True,
        scale=chosen.crop_area,
        ratio=chosen.crop_ratio,
        hflip=chosen.flip,
        color_jitter=chosen.color_jitter or None,
        auto_augment=chosen.auto_augment,
        interpolation=chosen.interpolation,
        mean=MEAN,
        std=STD,
        re_prob=chosen.erase,
        re_mode="pixel",
        re_count=1,
    )


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
    theirs = timm_transform(64, chosen)
    ours, normalise = train_transform(64, chosen, MEAN, STD), T.Normalize(MEAN, STD)
    for key in range(60):
        image = picture(seed=key)
        with seeded(key):
            expected = theirs(image)
        with seeded(key):
            got = ours(image)
        torch.testing.assert_close(normalise(to_floats(got)), expected, atol=1e-5, rtol=1e-5)


def test_jitter_rests_while_auto_augment_works():
    image = picture()
    for key in range(5):
        results = []
        for values in ({"auto_augment": DEIT}, {"auto_augment": DEIT, "color_jitter": 0.9}, {"color_jitter": 0.9}):
            with seeded(key):
                results.append(train_transform(32, options(**values), MEAN, STD)(image))
        assert torch.equal(results[0], results[1])
        assert not torch.equal(results[1], results[2])


def test_posterize():
    image = picture()
    for bits in range(9):
        kept = np.asarray(image).astype(int) // 2 ** (8 - bits) * 2 ** (8 - bits)
        assert np.array_equal(np.asarray(posterize(image, bits)), kept)


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


def test_crop_is_torchvisions():
    """The augmentation of linear evaluation: nothing but a resized crop and a flip."""
    plain = T.Compose([T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.ToTensor()])
    ours = train_transform(48, options(augment="crop", interpolation="bilinear"), MEAN, STD)
    for key in range(10):
        with seeded(key):
            expected = plain(picture())
        with seeded(key):
            assert torch.equal(to_floats(ours(picture())), expected)


def test_bigvision_crops_flips_and_augments():
    transform = train_transform(32, options(augment="bigvision", **KINDS["bigvision"]), MEAN, STD)
    crop, flip = InceptionCrop(32, PLAIN["crop_area"], PLAIN["crop_ratio"]), T.RandomHorizontalFlip(0.5)
    for key in range(10):
        with seeded(key):
            expected = T.ToTensor()(RandAugment(2, 15)(flip(crop(picture()))))
        with seeded(key):
            assert torch.equal(to_floats(transform(picture())), expected)
    without = train_transform(32, options(augment="bigvision", interpolation="bilinear"), MEAN, STD)
    with seeded(0):
        expected = T.ToTensor()(flip(crop(picture())))
    with seeded(0):
        assert torch.equal(to_floats(without(picture())), expected)


@pytest.mark.parametrize("pad", [0, 1, 4])
def test_padded_crops_are_shifts_over_black(pad):
    image = picture(32, 32)
    padded = np.pad(np.asarray(image), ((pad, pad), (pad, pad), (0, 0)))
    windows = {padded[y : y + 32, x : x + 32].tobytes() for y in range(2 * pad + 1) for x in range(2 * pad + 1)}
    random.seed(0)
    seen = {np.asarray(PaddedCrop(32, pad, "bicubic")(image)).tobytes() for _ in range(20 * len(windows))}
    assert seen == windows


def test_padded_crop_resizes_first():
    image = picture(50, 40)
    got = PaddedCrop(32, 0, "bilinear")(image)
    assert np.array_equal(np.asarray(got), np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)))


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


def test_the_shorter_side_is_timms_and_deits_at_every_size():
    """timm's own evaluation transform, and the formula of DeiT's `build_transform` (eval_crop_ratio 0.875)."""
    for size in range(16, 1025):
        theirs = create_transform(size, is_training=False, crop_pct=0.875).transforms[0].size
        assert shorter_side(size, None) == theirs == int(size / 0.875)
    assert [shorter_side(size, None) for size in (384, 224, 256, 32)] == [438, 256, 292, 36]


@pytest.mark.parametrize("resize", [None, 64, 56])
def test_evaluation_view(resize):
    """The shorter side to round(56 / 0.875) = 64 where nothing is said, then the centre."""
    expected = T.Compose([T.Resize(resize or 64, T.InterpolationMode.BICUBIC), T.CenterCrop(56), T.ToTensor()])
    for W, H in ((100, 80), (80, 120), (64, 64), (30, 41)):
        got = eval_transform(56, resize)(picture(W, H))
        assert torch.equal(to_floats(got), expected(picture(W, H)))


@pytest.mark.parametrize("kind", KINDS)
def test_small_images_are_scored_as_they_are(kind):
    image = picture(32, 32)
    got = eval_transform(32, 32, view="area" if kind == "bigvision" else "bicubic")(image)
    assert torch.equal(to_floats(got), T.ToTensor()(image))


def test_bigvision_scores_area_averages():
    got = eval_transform(56, view="area")(picture(100, 80))
    assert torch.equal(to_floats(got), T.ToTensor()(AreaCrop(56, 64)(picture(100, 80))))


def test_evaluation_draws_nothing():
    state = torch.get_rng_state(), random.getstate()
    eval_transform(32)(picture())
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"flip": 1.5}, "--flip 1.5: must be between 0 and 1"),
        ({"erase": float("nan")}, "--erase nan"),
        ({"crop_area": (0.5, 0.1)}, "--crop-area 0.5 0.1: .* the smaller value first"),
        ({"crop_area": (0.0, 1.0)}, "--crop-area 0.0 1.0: must be positive"),
        ({"crop_ratio": (0.0, 1.0)}, "--crop-ratio"),
        ({"resize": 0}, "--resize 0: must be at least 1"),
        ({"pad": 4}, "--pad: --augment timm has none; give `--pad 0`"),
        ({"randaug": (2, 10)}, "--randaug: --augment timm has none; give `--randaug None`"),
        ({"augment": "crop", "auto_augment": DEIT}, "--auto-augment: --augment crop has none"),
        ({"augment": "bigvision", "interpolation": "bilinear", "erase": 0.1}, "--erase: --augment bigvision"),
        ({"augment": "bigvision"}, "--interpolation bicubic: --augment bigvision is bilinear"),
        ({"augment": "pad", "interpolation": "random"}, "--interpolation random: only --augment timm"),
    ],
)
def test_options_that_cannot_be(values, message):
    with pytest.raises(UsageError, match=message):
        options(**values)


@pytest.mark.parametrize("description", ["rand-x9", "autumn", "augmix-q3"])
def test_unknown_auto_augment(description):
    with pytest.raises(UsageError, match=rf"--auto-augment {description}: .*rand-m9-mstd0\.5-inc1"):
        train_transform(32, options(auto_augment=description), MEAN, STD)


def test_evaluation_crop_larger_than_the_image():
    with pytest.raises(UsageError, match="--resize 30: below the size 32"):
        eval_transform(32, 30)


@dataclass(kw_only=True)
class Base:
    """A class without a parent that checks."""

    epochs: int

    def __post_init__(self) -> None:
        check_ranges(self, 1, None, "epochs")


@dataclass(kw_only=True)
class MixedFirst(MixOptions, AugmentOptions, Base):
    pass


@dataclass(kw_only=True)
class AugmentFirst(AugmentOptions, MixOptions, Base):
    pass


@pytest.mark.parametrize("combined", [MixedFirst, AugmentFirst])
def test_every_parent_checks(combined):
    mixing = {"mixing": "timm", "mixup": 0.8, "cutmix": 1.0, "mix_prob": 1.0, "switch_prob": 0.5, "smoothing": 0.1}
    values = {**PLAIN, **mixing, "epochs": 1}
    combined(**values)
    for flag, value in (("epochs", 0), ("flip", 2.0), ("smoothing", 2.0)):  # one of each parent
        with pytest.raises(UsageError, match=f"--{flag} "):
            combined(**{**values, flag: value})
