import hashlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torchvision.transforms import v2

from backbones.pretrain.dino.multicrop import MultiCrop
from tests.backbones.pretrain.dino_support import dino_options
from tests.backbones.pretrain.test_augment import options
from tests.transfer.data.layouts import saved, spec, write_folders, write_parquet
from transfer.core.errors import UsageError, UserError
from transfer.core.seeding import seeded
from transfer.data.classification import open_classification
from transfer.data.formats.users_reader import ArraySplit
from transfer.data.loading.augment import eval_transform, train_transform
from transfer.data.loading.images import reid_test_transform, reid_train_transform
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.integrity import content_digests
from transfer.data.splits.split import FileSplit, image_digest

CROP = v2.Compose([v2.RandomResizedCrop(8, antialias=True), v2.PILToTensor()])
KEYS = [(2, 3, 0), (2, 3, 1), (0, 14, 0), (5, 7, 2), (2, 4, 0)]


@pytest.fixture
def root(tmp_path):
    root = write_folders(tmp_path / "set")
    Image.new("L", (30, 20), 77).save(root / "train" / "cat" / "grey.png")
    return root


def train(root, **given):
    return open_classification(spec("image_folder", root, **given), None).train


def test_augmentation_is_a_function_of_seed_epoch_image_and_repeat(root):
    split = train(root)
    images = SplitDataset(split, CROP, seed=5)
    for key in KEYS:
        image, label = images[key]
        with seeded(5, *key):
            assert torch.equal(image, CROP(Image.open(split.path(key[1])).convert("RGB")))
        assert label == split.labels[key[1]]
    for other in (images[2, 3, 1], images[3, 3, 0], SplitDataset(split, CROP, seed=6)[2, 3, 0]):
        assert not torch.equal(images[2, 3, 0][0], other[0])
    assert len(images) == len(split) == 16
    state = torch.get_rng_state()
    image, _ = SplitDataset(split, reid_test_transform((32, 16)))[np.int64(1)]
    assert torch.equal(image, reid_test_transform((32, 16))(split.read(1)))
    assert torch.equal(torch.get_rng_state(), state), "a plain index draws nothing"


@pytest.mark.usefixtures("arrow_cache")
@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_preloaded_equals_read_and_takes_no_more_reading(root, tmp_path, form):
    split = train(root)
    if form == "parquet":
        rows = [(split.encoded(index), int(split.labels[index])) for index in range(len(split))]
        write_parquet(tmp_path / "rows" / "train.parquet", rows)
        split = open_classification(spec("parquet", tmp_path / "rows"), None).train
    plain = [np.asarray(split.read(index)) for index in range(len(split))]
    dataset = SplitDataset(split, v2.PILToTensor(), preload=True)
    split.decoded = lambda index: pytest.fail("read again")
    assert split.pixels is not None
    for index, expected in enumerate(plain):
        np.testing.assert_array_equal(np.asarray(split.read(index)), expected)
        np.testing.assert_array_equal(dataset[index][0].permute(1, 2, 0).numpy(), expected)
    image = split.read(0)
    image.putpixel((0, 0), (1, 2, 3))
    np.testing.assert_array_equal(np.asarray(split.read(0)), plain[0])
    SplitDataset(split, CROP)


def test_what_is_too_large_is_not_kept(root, monkeypatch):
    split, total = train(root), 3 * (15 * 12 * 16 + 30 * 20)
    for limit, preload, kept in ((total - 1, True, False), (total, False, False), (total, True, True)):
        monkeypatch.setattr("transfer.data.splits.dataset.PRELOAD_BYTES", limit)
        assert (SplitDataset(split, CROP, preload=preload).split.pixels is not None) == kept


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
    assert len({*content_digests(split)}) == (2 if channels == 4 else 1), "files that differ in their fourth channel"
    found = SplitDataset(split, eval_transform(SIDE, SIDE, view=view), preload=preload)[0][0]
    image = Image.open(split.path(0)).convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
    wanted = [np.asarray(band.resize((SIDE, SIDE), Image.Resampling.BICUBIC), int) for band in image.split()]
    assert found.shape == (channels, SIDE, SIDE)
    assert np.abs(found.numpy() - np.stack(wanted)).max() <= 2
    reid = SplitDataset(split, reid_test_transform((SIDE, SIDE)))[0][0]
    linear = [np.asarray(band.resize((SIDE, SIDE), Image.Resampling.BILINEAR), int) for band in image.split()]
    assert np.abs(255 * reid.numpy() - np.stack(linear)).max() <= 2


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
    assert SplitDataset(split, erased)[0, 0, 0][0].pixels.shape == (channels, SIDE, SIDE)


def test_what_cannot_be_read(split, tmp_path):
    tifffile.imwrite(tmp_path / "a.png", np.zeros((8, 8, 4), np.uint8), photometric="rgb", extrasamples=["unspecified"])
    split.read_channels(4)
    with pytest.raises(UserError, match=r"a\.png: .* \(of its channels PIL reads 3; others come by a reader with"):
        split.read(0)
    arrays = ArraySplit.of("train", tmp_path, ["a.png"], decode=lambda path: np.zeros((8, 8, 5), np.uint8), source="")
    arrays.read_channels(5)
    with pytest.raises(UsageError, match=r"SquashCrop takes PIL images, .* 5 channels; use --resize-mode fast"):
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
