from dataclasses import replace

import pytest

from tests.transfer.data.layouts import encoded, spec, write_folders
from transfer.core.errors import UsageError, UserError
from transfer.data import classification
from transfer.data.classification import open_classification


@pytest.fixture
def root(tmp_path):
    return write_folders(tmp_path / "set")


def opened(root, **given):
    return open_classification(spec("image_folder", root), None, **given)


def damage(root, *names):
    for name in names:
        (root / name).write_bytes(encoded(0)[:300])


def test_counts_are_compared(root):
    right = {"train": {"images": 15, "classes": 3}, "val": {"images": 6}}
    assert open_classification(spec("image_folder", root, counts=right), None).counts["train"]["images"] == 15
    with pytest.raises(UserError, match="train images: expected 16, found 15"):
        open_classification(spec("image_folder", root, counts={"train": {"images": 16}}), None)
    for counts in ({"training": {"images": 15}}, {"train": {"image": 15}}):
        with pytest.raises(UsageError, match="unknown entry"):
            open_classification(spec("image_folder", root, counts=counts), None)


def test_damaged_images_are_left_out_on_demand(root):
    damage(root, "train/cat/0.jpg", "val/dog/1.jpg")
    with pytest.raises(UserError, match="cannot be read"):
        opened(root)
    data = opened(root, drop_corrupt=True)
    assert (data.skipped, len(data.train), len(data.val)) == (2, 14, 5)
    assert "cat/0.jpg" not in data.train.names
    assert data.counts["train"] == {"images": 14, "classes": 3}


def test_a_class_of_damaged_images_is_named(root):
    damage(root, *(f"train/cat/{number}.jpg" for number in range(5)))
    with pytest.raises(UserError, match=r"all train images of 1 class\(es\) are corrupt: cat"):
        opened(root, drop_corrupt=True)


def test_large_sets_are_decoded_up_front_only_to_skip(root, monkeypatch):
    damage(root, "train/cat/0.jpg")
    monkeypatch.setattr(classification, "CHECKED_AT_ONCE", 20)
    data = opened(root)
    index = list(data.train.names).index("cat/0.jpg")
    with pytest.raises(UserError, match=r"train/cat/0\.jpg: cannot be read as an image"):
        data.train.read(index)
    assert opened(root, drop_corrupt=True).skipped == 1


def test_held_out_images_are_a_share_of_each_class_and_train_nothing(root):
    """At least one of each class's five; a fraction of the labels is taken of the others."""
    told = replace(spec("image_folder", root), held_out=0.3)
    held, part, whole = (*(open_classification(told, None, label_fraction=share) for share in (1, 0.5)), opened(root))
    split = {"train": {"images": 9, "classes": 3}, "held_out": {"images": 6, "classes": 3}}
    assert held.counts == whole.counts | split
    assert [*held.counts] == ["train", "held_out", "val", "ignored"]  # the last split with classes is the one scored
    assert sorted([*held.train.names, *held.held_out.names]) == sorted(whole.train.names)
    assert (list(held.val.names), whole.held_out) == (list(whole.val.names), None)
    assert held.digest != whole.digest
    assert list(part.held_out.names) == list(held.held_out.names)
    assert {*part.train.names} < {*held.train.names}


def test_subset_bounds_both_splits_and_the_fraction_takes_of_it(root):
    data = opened(root, subset=4, label_fraction=0.5)
    assert (data.counts["train"]["images"], data.counts["val"]["images"]) == (6, 6)
