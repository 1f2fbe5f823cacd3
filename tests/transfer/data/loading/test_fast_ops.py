"""The operations by OpenCV against Pillow's, torchvision's and timm's."""

import random

import numpy as np
import pytest
from PIL import Image
from timm.data.auto_augment import NAME_TO_OP, AugmentOp
from torchvision.transforms import functional as F

from transfer.data.loading import fast_ops
from transfer.data.loading.augment import posterize

MOVING = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
BLENDING = ("Color", "ColorIncreasing", "Sharpness", "SharpnessIncreasing", "Desaturate")
FILL = (1, 2, 3)
BLURRING = ("GaussianBlur", "GaussianBlurRand")


def pictures():
    generator = np.random.default_rng(0)
    noise = Image.fromarray(generator.integers(0, 256, (40, 56, 3), dtype=np.uint8))
    smooth = Image.fromarray(generator.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((56, 40))
    narrow = Image.fromarray(np.asarray(smooth) // 3 + 60)
    flat = Image.new("RGB", (56, 40), (9, 9, 200))
    black = Image.new("RGB", (56, 40))
    return [noise, smooth, narrow, flat, black]


def difference(a, b):
    return np.abs(np.asarray(a).astype(int) - np.asarray(b).astype(int))


@pytest.mark.parametrize("name", fast_ops.TIMM)
@pytest.mark.parametrize("magnitude", [0, 5, 10])
def test_timms_operations(name, magnitude):
    """Equal, but for roundings of a blend, and pixels between pixels."""
    for number, image in enumerate(pictures()):
        results = []
        for given, function in ((image, NAME_TO_OP[name]), (np.array(image), fast_ops.TIMM[name])):
            op = AugmentOp(name, prob=1.0, magnitude=magnitude, hparams={"translate_const": 20, "img_mean": (9, 8, 7)})
            op.aug_fn = posterize if name.startswith("Posterize") and given is image else function
            random.seed(number)
            results.append(op(given))
            results.append(random.random())
        assert results[1] == results[3]
        assert results[2].dtype == np.uint8
        differences = difference(results[0], results[2])
        if name in MOVING:
            assert number == 0 or differences.mean() < 2.5
        elif name in BLURRING:
            assert differences[6:-6, 6:-6].max() <= 3
        elif name in BLENDING:
            assert differences.max() <= 1
        else:
            assert differences.max() == 0


def test_moves_by_whole_pixels_are_exact():
    image = pictures()[0]
    for data in ((1, 0, 5, 0, 1, 0), (1, 0, 0, 0, 1, -7), (0, -1, 56, 1, 0, 0)):
        expected = image.transform(
            image.size, Image.Transform.AFFINE, data, Image.Resampling.BICUBIC, fillcolor=(1, 2, 3)
        )
        assert difference(fast_ops.affine(np.array(image), data, fillcolor=(1, 2, 3)), expected).max() == 0


@pytest.mark.parametrize("shift", [-0.1, 0.03, 0.4])
def test_hue(shift):
    """Both round hue and saturation to 8 bits, each in its way."""
    for image in pictures():
        differences = difference(fast_ops.hue(np.array(image), shift), F.adjust_hue(image, shift))
        assert differences.mean() < 2
        assert differences.max() <= 16
