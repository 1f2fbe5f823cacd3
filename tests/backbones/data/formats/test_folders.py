import os
import re
import shutil

import numpy as np
import pytest

from backbones.data.classification import open_classification
from backbones.data.formats.folders import image_folder
from backbones.errors import UsageError, UserError
from tests.backbones.data.layouts import encoded, spec, write_folders, write_images


def opened(root, **options):
    return open_classification(spec("image_folder", root, **options), None)


def test_labels_are_positions_of_sorted_folders(tmp_path):
    data = opened(write_folders(tmp_path / "set", classes=("dog", "bird", "Cat")))
    assert data.classes == ("Cat", "bird", "dog")
    assert data.train.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert data.train.labels.dtype == np.int64
    assert list(data.val.names) == ["Cat/0.jpg", "Cat/1.jpg", "bird/0.jpg", "bird/1.jpg", "dog/0.jpg", "dog/1.jpg"]
    assert data.counts == {"train": {"images": 15, "classes": 3}, "val": {"images": 6, "classes": 3}, "ignored": 0}
    assert data.train.read(3).size == (16, 12)
    assert data.train.encoded(5) == encoded(1, 0)


def test_the_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    root = write_folders(tmp_path / "set")
    plain, listing = opened(root), os.scandir
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda folder: sorted(listing(folder), key=lambda entry: entry.name)[::-1])
        turned = image_folder(spec("image_folder", root), None).train
    assert list(turned.names) == list(plain.train.names)


def test_keys_name_the_folders(tmp_path):
    root = write_folders(tmp_path / "set", val_name="test")
    assert len(opened(root).val) == 6
    (root / "train").rename(root / "fit")
    assert len(opened(root, train="fit").train) == 15
    with pytest.raises(UserError, match=r"absent: there is no such folder \(key `val`\)"):
        opened(root, val="absent")
    with pytest.raises(UsageError, match="`train` is 3"):
        opened(root, train=3)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: (root / "val" / "cat").rename(root / "away"), "only in training: cat"),
        (lambda root: write_images(root / "val" / "cow", 1), "only in validation: cow"),
        (lambda root: (root / "train" / "ant").mkdir(), "1 class folder(s) without images: ant"),
        (lambda root: shutil.rmtree(root / "train") or (root / "train").mkdir(), "no class folders"),
        (lambda root: (root / "train" / "0.jpg").touch(), "1 image(s) beside the class folders: 0.jpg"),
        (
            lambda root: write_images(root / "train" / "cat" / "images", 1),
            "train/cat/images: a folder among the",
        ),
        (lambda root: (root / "train/cat/x.jpg").symlink_to("nowhere"), "train/cat/x.jpg: cannot be opened: No such"),
        (
            lambda root: (root / "train/cat/3.jpg").write_bytes(encoded(0)[:200]),
            "train/cat/3.jpg: cannot be read as an image (",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, spoil, said):
    root = write_folders(tmp_path / "set")
    spoil(root)
    with pytest.raises(UserError, match=re.escape(said)):
        opened(root)
