import hashlib
import math
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from backbones.data.classification import open_classification
from backbones.data.splits.integrity import take_fraction, take_per_class
from tests.backbones.data.layouts import spec, write_folders, write_images, write_parquet


@pytest.fixture
def root(tmp_path):
    root = write_folders(tmp_path / "set", train=10, val=1)
    write_images(root / "train" / "cat", 3, 7)
    return root


def train(root, **given):
    return open_classification(spec("image_folder", root), None, **given).train


def contents(split):
    return sorted((int(split.labels[index]), split.encoded(index)) for index in range(len(split)))


def test_a_share_is_the_first_of_each_class_by_content_and_seed(root):
    split = train(root)
    kept = take_fraction(split, 0.3, seed=4)
    expected = []
    for label in range(3):
        own = [split.encoded(index) for index in range(len(split)) if split.labels[index] == label]
        own.sort(key=lambda content: hashlib.sha256(hashlib.sha256(content).digest() + b"4").digest())
        expected += [(label, content) for content in own[: math.ceil(0.3 * len(own) - 1e-9)]]
    assert contents(kept) == sorted(expected)
    assert list(kept.names) == sorted(kept.names, key=list(split.names).index)


def test_shares_are_nested_and_round_up(root):
    split = train(root)
    assert set(take_fraction(split, 0.3, seed=0).names) != set(take_fraction(split, 0.3, seed=1).names)
    names = [set(take_fraction(split, share).names) for share in (0.01, 0.1, 0.2, 0.5, 0.99)]
    assert [len(chosen) for chosen in names] == [3, 3, 6, 15, 30]
    assert all(small <= large for small, large in pairwise(names))
    assert take_fraction(split, 1.0) is split


@pytest.mark.usefixtures("arrow_cache")
@pytest.mark.parametrize("given", [{"label_fraction": 0.3}, {"subset": 4}, {"subset": 7, "label_fraction": 0.5}])
def test_a_folder_and_parquet_give_the_same_images(root, tmp_path, given):
    whole = contents(train(root))
    rows = [(content, label) for label, content in reversed(whole)]
    write_parquet(tmp_path / "rows" / "train.parquet", rows)
    from_rows = open_classification(spec("parquet", tmp_path / "rows"), None, **given).train
    assert contents(from_rows) == contents(train(root, **given))
    assert len(from_rows) < len(whole)


def test_subsets_are_nested_and_take_all_of_a_small_class(root):
    write_images(root / "train" / "emu", 2, 60)
    write_images(root / "val" / "emu", 1, 160)
    split = train(root)
    small, large = take_per_class(split, 2), take_per_class(split, 4)
    assert set(small.names) < set(large.names)
    assert [int((large.labels == label).sum()) for label in range(4)] == [4, 4, 4, 2]


def test_the_choice_does_not_depend_on_a_lossless_format(tmp_path):
    """PNG and TIFF of equal pixels, under other names."""
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        for folder, name in (("one", f"{number}.png"), ("two", f"{9 - number}.tif")):
            path = tmp_path / folder / "train" / "cat" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    chosen = [take_per_class(train(tmp_path / folder), 3) for folder in ("one", "two")]
    digests = [{split.content_digest(index) for index in range(3)} for split in chosen]
    assert digests[0] == digests[1]
    assert {int(name[4]) for name in chosen[0].names} == {9 - int(name[4]) for name in chosen[1].names}
