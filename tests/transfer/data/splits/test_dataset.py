import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from tests.transfer.data.layouts import spec, write_folders, write_parquet
from transfer.core.seeding import seeded
from transfer.data.classification import open_classification
from transfer.data.loading.images import reid_test_transform
from transfer.data.splits.dataset import SplitDataset

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


def test_a_plain_index_draws_nothing(root):
    split = train(root)
    state = torch.get_rng_state()
    (image, _) = SplitDataset(split, reid_test_transform((32, 16)))[np.int64(1)]
    assert torch.equal(image, reid_test_transform((32, 16))(split.read(1)))
    assert torch.equal(torch.get_rng_state(), state)


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


def test_what_is_too_large_is_not_kept(root):
    split, total = train(root), 3 * (15 * 12 * 16 + 30 * 20)
    split.preload(total - 1)
    assert split.pixels is None
    split.preload(total)
    assert split.pixels is not None
    assert SplitDataset(train(root), CROP, preload=False).split.pixels is None
