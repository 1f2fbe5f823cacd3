import hashlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from backbones.pretrain.dino.multicrop import MultiCrop
from tests.backbones.pretrain.dino_support import dino_options
from tests.backbones.pretrain.test_augment import options
from tests.transfer.data.layouts import saved
from transfer.core.errors import UsageError, UserError
from transfer.data.formats.users_reader import ArraySplit
from transfer.data.loading.augment import eval_transform, train_transform
from transfer.data.loading.images import reid_test_transform, reid_train_transform
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.integrity import content_digests
from transfer.data.splits.split import FileSplit, image_digest

SIDE = 24


@pytest.fixture
def split(tmp_path):
    """A smooth picture with transparency, in two files that differ in it alone."""
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 8)).astype(np.uint8))
    bands = [coarse.crop((0, top, 8, top + 8)).resize((32, 32), Image.Resampling.BICUBIC) for top in (0, 8, 16, 24)]
    pixels = np.stack(bands, axis=-1)
    for name in ("a.png", "b.png"):
        Image.fromarray(pixels).save(tmp_path / name)
        pixels[..., 3] = 255 - pixels[..., 3]
    return FileSplit.of("train", tmp_path, ["a.png", "b.png"])


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("view", ["bicubic", "fast"])
@pytest.mark.parametrize("preload", [False, True])
def test_each_channel_is_that_of_pil(split, view, channels, preload):
    split.read_channels(channels)
    found = SplitDataset(split, eval_transform(SIDE, SIDE, view=view), preload=preload)[0][0]
    image = Image.open(split.path(0)).convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
    wanted = [np.asarray(band.resize((SIDE, SIDE), Image.Resampling.BICUBIC), int) for band in image.split()]
    assert found.shape == (channels, SIDE, SIDE)
    assert np.abs(found.numpy() - np.stack(wanted)).max() <= 2
    reid = SplitDataset(split, reid_test_transform((SIDE, SIDE)))[0][0]
    linear = [np.asarray(band.resize((SIDE, SIDE), Image.Resampling.BILINEAR), int) for band in image.split()]
    assert np.abs(255 * reid.numpy() - np.stack(linear)).max() <= 2


def test_images_that_differ_in_their_fourth_channel_are_different(split):
    assert len({*content_digests(split)}) == 1
    split.read_channels(4)
    assert len({*content_digests(split)}) == 2


@pytest.mark.parametrize("channels", [1, 4, 5])
@pytest.mark.parametrize("image_ops", ["pil", "fast"])
def test_augmentation_is_without_colors(channels, image_ops, tmp_path):
    """What is the same in every pixel stays so, in whichever operations the recipe has."""
    bands = np.arange(40, 40 + 10 * channels, 10).astype(np.uint8)
    np.save(tmp_path / "a.npy", np.broadcast_to(bands, (32, 32, channels)))
    split = ArraySplit.of("train", tmp_path, ["a.npy"], decode=np.load, source="")
    split.read_channels(channels)
    mean, std = (0.5,) * channels, (0.1,) * channels
    recipe = options(augment="timm", auto_augment="rand-m9-mstd0.5", color_jitter=0.4, erase=0.0, image_ops=image_ops)
    crops = MultiCrop(dino_options(size=SIDE, resize=None, image_ops="fast"), colors=False)
    reid = reid_train_transform(SimpleNamespace(size=(SIDE, SIDE), flip=0.5, pad=0, erase=0.0), mean, std)
    steps = (train_transform(SIDE, recipe, mean, std), reid)
    for number in range(5):
        views = [SplitDataset(split, step)[0, 0, number][0] for step in steps]
        views[1] = views[1][0]  # beside a box and its noise
        for view in (*views, *SplitDataset(split, crops)[0, 0, number][0]):
            pixels = view if view.dtype == torch.uint8 else 255 * view
            assert torch.allclose(pixels.float(), torch.tensor(bands).float().view(-1, 1, 1), atol=0.6)
    erased = train_transform(SIDE, options(augment="timm", auto_augment=None, color_jitter=0.0, erase=1.0), mean, std)
    assert SplitDataset(split, erased)[0, 0, 0][0].shape == (channels, SIDE, SIDE)


def test_what_cannot_be_read(split, tmp_path):
    with pytest.raises(UsageError, match=r"--in-chans 5: image files give 1, 3 or 4 channels; .* with `decode`"):
        split.read_channels(5)
    tifffile.imwrite(tmp_path / "a.png", np.zeros((8, 8, 4), np.uint8), photometric="rgb", extrasamples=["unspecified"])
    split.read_channels(4)
    with pytest.raises(UserError, match=r"a\.png: .* \(of its channels PIL reads 3; others come by a reader with"):
        split.read(0)
    arrays = ArraySplit.of("train", tmp_path, ["a.png"], decode=lambda path: np.zeros((8, 8, 5), np.uint8), source="")
    arrays.read_channels(4)
    with pytest.raises(UserError, match=r"a\.png: 5 channels, for a backbone of 4: set --in-chans 5"):
        arrays.read_pixels(0)
    arrays.read_channels(5)
    with pytest.raises(UsageError, match=r"SquashCrop is of PIL images, .* 5 channels; use --resize-mode fast"):
        SplitDataset(arrays, eval_transform(4, 4, view="squash"))[0]
    for wrong in (np.zeros((8, 8), np.uint8), np.zeros((8, 8, 5)), None):
        with pytest.raises(UserError, match=r"a\.png: `decode` gives .*; wanted: \[H, W, C\], uint8, or float32"):
            replace(arrays, decode=lambda path, wrong=wrong: wrong).decoded(0)
    with pytest.raises(UserError, match=r"a\.png: `decode` of the dataset's reader fails \(ValueError: invalid"):
        replace(arrays, decode=lambda path: int("no")).decoded(0)


PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
LOSSLESS = [("PNG", {}), ("PNG", {"compress_level": 0}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})]
LOSSY = [("JPEG", {}), ("WEBP", {}), ("WEBP", {"lossless": True})]


@pytest.mark.parametrize(("kind", "options"), [*LOSSLESS, ("BMP", {}), ("PPM", {}), *LOSSY])
def test_lossless_images_agree_whatever_stores_them_and_lossy_formats_count_as_their_bytes(kind, options):
    content = saved(Image.fromarray(PIXELS), kind, **options)
    counted = content if kind in ("JPEG", "WEBP") else b"16x12\0" + PIXELS.tobytes()
    assert image_digest(content, name="image") == hashlib.sha256(counted).hexdigest()
