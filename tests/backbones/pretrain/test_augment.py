"""Augmentation and evaluation views, against timm's pipeline, torchvision on tensors and big_vision's operations."""

import math
import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.ndimage import map_coordinates
from timm.data import create_transform
from torchvision import transforms as T

from transfer.core.errors import UsageError
from transfer.core.seeding import seeded
from transfer.data.loading import bigvision
from transfer.data.loading.augment import AugmentOptions, eval_transform, train_transform
from transfer.data.loading.bigvision import OPERATIONS, AreaCrop, InceptionCrop, RandAugment, SquashCrop
from transfer.data.loading.images import collate_boxes, to_floats
from transfer.engine.learner import Learner

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEIT = "rand-m9-mstd0.5-inc1"
PLAIN = {
    "augment": "timm", "crop_area": (0.08, 1.0), "crop_ratio": (3 / 4, 4 / 3), "interpolation": "bicubic", "flip": 0.5,
    "auto_augment": None, "color_jitter": 0.0, "erase": 0.0, "pad": 0, "randaug": None, "resize": None,
    "image_ops": "pil",
}  # fmt: skip


def options(**values):
    return AugmentOptions(**{**PLAIN, **values})


def picture(W=100, H=80, seed=0):
    noise = np.random.default_rng(seed).integers(0, 256, (H // 4, W // 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((W, H), Image.Resampling.BICUBIC)


def seen_by_model(view):
    """An augmented image as the model gets it: in a batch, as floats, erased."""
    return Learner().prepare(collate_boxes([(view,)]), torch.device("cpu"))[0][0]


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
    ours, normalise = pickle.loads(pickle.dumps(train_transform(64, chosen, MEAN, STD))), T.Normalize(MEAN, STD)
    for key in range(60):
        image = picture(seed=key)
        with seeded(key):
            expected = theirs(image)
        with seeded(key):
            got = ours(image)
        torch.testing.assert_close(normalise(seen_by_model(got)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("description", ["rand-m10-inc1", "v0"])
def test_posterize_without_bits_on_every_pillow(description):
    """Both descriptions reach 0 bits, which Pillow refuses from version 13 on."""
    transform = train_transform(16, options(auto_augment=description), MEAN, STD)
    image = picture(16, 16)
    for key in range(300):
        with seeded(key):
            transform(image)


@pytest.mark.parametrize("randaug", [None, (2, 15)])
def test_bigvision_crops_flips_and_augments(randaug):
    transform = train_transform(32, options(augment="bigvision", interpolation="bilinear", randaug=randaug), MEAN, STD)
    crop, flip = InceptionCrop(32, PLAIN["crop_area"], PLAIN["crop_ratio"]), T.RandomHorizontalFlip(0.5)
    for key in range(10):
        with seeded(key):
            expected = flip(crop(picture()))
            expected = T.ToTensor()(RandAugment(*randaug)(expected) if randaug else expected)
        with seeded(key):
            found = pickle.loads(pickle.dumps(transform))(picture())
        assert found.dtype == torch.uint8, "bytes travel to the model"
        assert torch.equal(to_floats(found), expected)


def test_erased_noise_is_that_of_the_backbone():
    """`pad` erases as `timm` does: noise around the mean, outside [0, 1] at times."""
    transform = train_transform(64, options(augment="pad", erase=1.0, flip=0.0), (0.9, 0.5, 0.1), STD)
    values = []
    for key in range(30):
        with seeded(key):
            got = seen_by_model(transform(Image.new("RGB", (64, 64))))
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
        ({"auto_augment": "rand-x9"}, r"--auto-augment rand-x9: .*rand-m9-mstd0\.5-inc1"),
        ({"auto_augment": "autumn"}, r"--auto-augment autumn: .*rand-m9-mstd0\.5-inc1"),
    ],
)
def test_options_that_cannot_be(values, message):
    with pytest.raises(UsageError, match=message):
        train_transform(32, options(**values), MEAN, STD)


def noise(W, H):
    return Image.fromarray(np.random.default_rng(W + H).integers(0, 256, (H, W, 3), dtype=np.uint8))


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


def without_antialias(image, size):
    """[size, size, 3] in float64."""
    pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1)[None].double()
    return torch.nn.functional.interpolate(pixels, (size, size), mode="bilinear")[0].permute(1, 2, 0).numpy()


def is_truncated(seen, exact, slack):
    """Whether pixels are the exact ones, truncated and never rounded up."""
    difference = np.asarray(seen).astype(int) - exact
    return difference.max() < slack and difference.min() > -1 - slack


@pytest.mark.parametrize(("W", "H", "size"), [(200, 150, 32), (20, 30, 64), (48, 48, 48)])
def test_resized_without_antialias(W, H, size):
    image = noise(W, H)
    crop = InceptionCrop(size, (0.2, 1.0), (0.75, 1.33))
    for seed in range(5):
        random.seed(seed)
        left, top, w, h = crop.draw(W, H)
        random.seed(seed)
        part = image.crop((left, top, left + w, top + h))
        assert is_truncated(crop(image), without_antialias(part, size), 1e-6)
    squashed = without_antialias(image, size)[4 : size - 4, 4 : size - 4]
    assert is_truncated(SquashCrop(size - 8, size)(image), squashed, 1e-4)


@pytest.mark.parametrize(("W", "H", "size", "resize"), [(40, 30, 14, 16), (30, 41, 20, 20), (9, 8, 20, 24)])
def test_area_averages(W, H, size, resize):
    """Every pixel is the mean of the part of the image that it covers."""
    image = noise(W, H)
    x = np.asarray(image).astype(np.float64)
    w, h = round(W * resize / min(W, H)), round(H * resize / min(W, H))
    fine = x.repeat(h, 0).repeat(w, 1)  # H h x W w cells: each pixel of the result covers H x W of them
    plain = fine.reshape(h, H, w, W, 3).mean((1, 3))
    top, left = (h - size) // 2, (w - size) // 2
    assert is_truncated(AreaCrop(size, resize)(image), plain[top : top + size, left : left + size], 2e-3)


LEVELS = (0, 5, 10, 15, 20)
H, W = 48, 64


@pytest.fixture
def image():
    return noise(8, 6).resize((W, H), Image.Resampling.BICUBIC)


def truncated(values):
    return np.clip(values, 0, 255).astype(np.uint8)


def applied(name, image, level):
    return np.asarray(OPERATIONS[name](image, level / 10))


def test_the_sixteen_operations():
    names = "AutoContrast Equalize Invert Rotate Posterize Solarize Color Contrast Brightness Sharpness "
    names += "ShearX ShearY TranslateX TranslateY Cutout SolarizeAdd"
    assert list(OPERATIONS) == names.split()


@pytest.mark.parametrize("level", LEVELS)
def test_operations_without_magnitude(image, level):
    x = T.functional.pil_to_tensor(image)
    plain = {"Invert": T.functional.invert(x), "Equalize": T.functional.equalize(x)}
    plain["AutoContrast"] = T.functional.autocontrast(x)
    for name, expected in plain.items():
        difference = np.abs(applied(name, image, level).astype(int) - expected.permute(1, 2, 0).int().numpy())
        assert difference.max() <= (name == "AutoContrast"), name


@pytest.mark.parametrize(
    ("level", "threshold", "bits", "add"),
    [(0, 0, 1, 0), (5, 128, 2, 55), (9, 230, 3, 99), (10, 0, 4, 110), (15, 128, 6, 165), (20, 0, 8, 220)],
)
def test_values_of_the_pointwise_operations(image, level, threshold, bits, add):
    """Thresholds and shifts are bytes: 256 is 0, and a shift clears 7 bits at most."""
    x = np.asarray(image).astype(int)
    assert np.array_equal(applied("Solarize", image, level), np.where(x < threshold, x, 255 - x))
    assert np.array_equal(applied("Posterize", image, level), x >> (8 - bits) << (8 - bits))
    assert np.array_equal(applied("SolarizeAdd", image, level), np.where(x < 128, np.minimum(x + add, 255), x))


@pytest.mark.parametrize(("level", "factor"), [(0, 0.1), (5, 1.0), (10, 1.9), (15, 2.8), (20, 3.7)])
def test_enhancements_move_away_from_a_lesser_image(image, level, factor):
    x = np.asarray(image).astype(np.float64)
    grey = (x @ (0.2989, 0.587, 0.114)).round()[..., None]
    smooth = x.copy()
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (0, 1))
    smooth[1:-1, 1:-1] = np.floor((windows * kernel).sum((-2, -1)) + 1e-9)
    lesser = {"Brightness": 0, "Contrast": H * W // 256, "Color": grey, "Sharpness": smooth}
    for name, other in lesser.items():
        difference = np.abs(applied(name, image, level).astype(int) - truncated(other + factor * (x - other)))
        assert difference.max() <= (1 if name != "Color" else 1 + abs(factor - 1)), name


def moved(x, source):
    """x at the nearest pixel of source(column, row), grey outside."""
    rows, columns = np.mgrid[:H, :W]
    places = [side.ravel() for side in np.broadcast_arrays(*source(columns, rows))][::-1]
    found = [
        map_coordinates(channel, places, order=0, mode="grid-constant", cval=128) for channel in x.transpose(2, 0, 1)
    ]
    return np.stack(found, -1).reshape(x.shape)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("level", LEVELS)
def test_geometry(monkeypatch, image, level, sign):
    """Nearest pixels (a few at ties may differ), grey 128 where nothing lies."""
    monkeypatch.setattr(bigvision, "random_sign", lambda m: sign * m)
    x, m = np.asarray(image), sign * level / 10
    angle, middle = math.radians(30 * m), ((W - 1) / 2, (H - 1) / 2)

    def rotated(column, row):
        column, row = column - middle[0], row - middle[1]
        cos, sin = math.cos(angle), math.sin(angle)
        return cos * column - sin * row + middle[0], sin * column + cos * row + middle[1]

    sources = {
        "Rotate": rotated,
        "ShearX": lambda column, row: (column + 0.3 * m * row, row),
        "ShearY": lambda column, row: (column, row + 0.3 * m * column),
        "TranslateX": lambda column, row: (column + 100 * m, row),
        "TranslateY": lambda column, row: (column, row + 100 * m),
    }
    for name, source in sources.items():
        assert (applied(name, image, level) != moved(x, source)).mean() < 0.005, name
