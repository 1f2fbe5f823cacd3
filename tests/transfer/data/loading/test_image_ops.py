"""The fast image operations against PIL's: the same images, crops and draws."""

import io
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from backbones.pretrain.dino.multicrop import MultiCrop
from tests.backbones.pretrain.dino_support import dino_options
from tests.backbones.pretrain.test_augment import DEIT, MEAN, STD, options, picture
from tests.transfer.data.layouts import saved
from transfer.core.seeding import seeded
from transfer.data.loading.augment import eval_transform, train_transform
from transfer.data.loading.images import read_pixels, to_pixels
from transfer.data.loading.read_image import read_image

EXIF = Image.Exif()
EXIF[0x0112] = 6  # orientation: a quarter turn
FILES = {
    "plain": lambda: saved(picture()),
    "4:4:4": lambda: saved(picture(), subsampling=0, quality=95),
    "odd sides": lambda: saved(picture(97, 61)),
    "CMYK": lambda: saved(picture().convert("CMYK")),
    "grey": lambda: saved(picture().convert("L")),
    "rotated by EXIF": lambda: saved(picture(), exif=EXIF),
    "progressive": lambda: saved(picture(), progressive=True),
    "WebP": lambda: saved(picture(), "WEBP"),
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


@pytest.mark.parametrize("colors", COLORS)
def test_draws_and_views_are_those_of_pil(colors):
    """After a view of either path every generator stands at the same place, and most pixels are equal within a level;
    what moves pixels by parts of one interpolates a little differently.
    """
    image, means = SMOOTH, []
    for key in range(30):
        views, states = [], []
        for ops, source in (("pil", image), ("fast", to_pixels(image))):
            with seeded(key):
                view = train_transform(48, options(image_ops=ops, **COLORS[colors]), MEAN, STD)(source)
                states.append((random.random(), np.random.random(), float(torch.rand(1))))  # noqa: NPY002
            views.append(view.int())
        assert states[0] == states[1]
        means.append(float((views[0] - views[1]).abs().float().mean()))
    assert np.median(means) < 0.5
    assert np.max(means) < 10


def test_multicrop_has_the_crops_of_pil():
    """Ten crops of pixels decoded once: the same boxes, colors and blurs as PIL's."""
    image, recipe = SMOOTH, dino_options(size=56, resize=None, local_size=24, local_crops=8)
    differences = []
    for key in range(10):
        with seeded(key):
            expected = MultiCrop(recipe)(image)
            after = random.random(), float(torch.rand(1))
        with seeded(key):
            got = MultiCrop(replace(recipe, image_ops="fast"))(to_pixels(image))
            assert (random.random(), float(torch.rand(1))) == after
        assert [view.shape for view in got] == [view.shape for view in expected]
        differences += [float((a.int() - b.int()).abs().float().mean()) for a, b in zip(got, expected, strict=True)]
    assert np.median(differences) < 0.7
    assert np.max(differences) < 2
