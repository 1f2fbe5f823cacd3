"""Image operations against those of PIL, torchvision, timm and TransReID: the same images, crops and draws."""

import io
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import NAME_TO_OP, AugmentOp
from timm.data.random_erasing import RandomErasing as TimmErasing
from torchvision import transforms as v1

from backbones.pretrain.dino.multicrop import MultiCrop
from tests.backbones.pretrain.dino_support import dino_options
from tests.backbones.pretrain.test_augment import DEIT, MEAN, STD, options, picture
from tests.transfer.data.layouts import saved
from transfer.core.seeding import seeded
from transfer.data.loading import fast_ops
from transfer.data.loading.augment import eval_transform, posterize, train_transform
from transfer.data.loading.images import (
    collate_boxes,
    erased,
    read_pixels,
    reid_test_transform,
    reid_train_transform,
    to_pixels,
)
from transfer.data.loading.read_image import read_image

FILES = {
    "plain": lambda: saved(picture()),
    "4:4:4": lambda: saved(picture(), subsampling=0, quality=95),
    "odd sides": lambda: saved(picture(97, 61)),
    "grey": lambda: saved(picture().convert("L")),
    "progressive": lambda: saved(picture(), progressive=True),
    "animated GIF": lambda: saved(picture(), "GIF", save_all=True, append_images=[picture(seed=1)]),
    "palette with transparency": lambda: saved(picture().convert("P"), "PNG", transparency=0),
}
DITHERED = ("palette with transparency", "animated GIF")
"""Neighbouring pixels differ so much there that rounding in the two passes of a resize grows."""


def same(got, expected, kind):
    difference = (got.int() - expected.int()).abs()
    assert got.shape == expected.shape
    assert difference.max() <= (8 if kind in DITHERED else 2)
    assert difference.float().mean() < 0.5


@pytest.mark.parametrize("kind", FILES)
def test_decodes_crops_and_resizes_like_pil(kind):
    """Within 2 of 255, before and after the crop; a scored view for sizes that are and are not those of the file,
    smaller and larger ones.
    """
    content = FILES[kind]()
    image, pixels = read_image(io.BytesIO(content)), read_pixels(content, name="file")
    assert pixels.dtype == torch.uint8
    assert (to_pixels(image).int() - pixels.int()).abs().max() <= 2
    for interpolation in ("bicubic", "bilinear"):
        slow, fast = (
            train_transform(48, options(image_ops=ops, interpolation=interpolation), MEAN, STD)
            for ops in ("pil", "fast")
        )
        for key in range(4):
            with seeded(key):
                expected = slow(image)
            with seeded(key):
                same(fast(pixels), expected, kind)
    for size, resize in ((48, 57), (32, 61), (80, 80), (56, 140)):
        view = eval_transform(size, resize, view="fast")
        same(view(pixels), eval_transform(size, resize)(image), kind)
        assert torch.equal(view(to_pixels(image)), view(image))


SMOOTH = picture(12, 9).resize((120, 90), Image.Resampling.BICUBIC)
COLORS = {
    "RandAugment": {"auto_augment": DEIT},
    "RandAugment, random interpolation": {"auto_augment": "rand-m9-mstd0.5", "interpolation": "random"},
    "AutoAugment": {"auto_augment": "v0"},
    "3-Augment": {"auto_augment": "3a", "color_jitter": 0.3},
    "jitter": {"color_jitter": 0.4},
}
CROPS = dino_options(size=56, resize=None, local_size=24, local_crops=8)


@pytest.mark.parametrize("kind", [*COLORS, "multicrop"])
def test_draws_and_views_are_those_of_pil(kind):
    """After a view of either path every generator stands at the same place, and most pixels are equal within a level;
    what moves pixels by parts of one interpolates a little differently. Ten crops are of pixels decoded once.
    """
    keys, median, most = (10, 0.7, 2) if kind == "multicrop" else (30, 0.5, 10)
    differences = []
    for key in range(keys):
        views, states = [], []
        for ops, source in (("pil", SMOOTH), ("fast", to_pixels(SMOOTH))):
            with seeded(key):
                if kind == "multicrop":
                    views.append(MultiCrop(replace(CROPS, image_ops=ops))(source))
                else:
                    views.append([train_transform(48, options(image_ops=ops, **COLORS[kind]), MEAN, STD)(source)])
                states.append((random.random(), np.random.random(), float(torch.rand(1))))  # noqa: NPY002
        assert states[0] == states[1]
        assert [view.shape for view in views[0]] == [view.shape for view in views[1]]
        differences += [float((a.int() - b.int()).abs().float().mean()) for a, b in zip(*views)]
    assert np.median(differences) < median
    assert np.max(differences) < most


MOVING = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
BLENDING = ("Color", "ColorIncreasing", "Sharpness", "SharpnessIncreasing", "Desaturate")
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
