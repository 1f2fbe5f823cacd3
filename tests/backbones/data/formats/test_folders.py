import os

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


def spoilt(tmp_path, how):
    root = write_folders(tmp_path / "set")
    if how == "missing in val":
        (root / "val" / "cat").rename(tmp_path / "away")
    elif how == "only in val":
        write_images(root / "val" / "cow", 1)
    elif how == "empty":
        (root / "train" / "ant").mkdir()
        (root / "train" / "ant" / "notes.txt").touch()
    elif how == "no classes":
        (root / "train").rename(tmp_path / "away")
        (root / "train").mkdir()
        (root / "train" / "notes.txt").touch()
    elif how == "stray":
        (root / "train" / "0.jpg").write_bytes(encoded(0))
    elif how == "nested":
        write_images(root / "train" / "cat" / "images", 1)
    elif how == "broken link":
        (root / "train" / "cat" / "x.jpg").symlink_to(tmp_path / "nowhere")
    elif how == "truncated":
        (root / "train" / "cat" / "3.jpg").write_bytes(encoded(0)[:200])
    return root


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ("missing in val", ["differ", "only in training: cat"]),
        ("only in val", ["differ", "only in validation: cow"]),
        ("empty", ["1 class folder(s) without images: ant"]),
        ("no classes", ["no class folders", "train/CLASS/image.jpg"]),
        ("stray", ["1 image(s) beside the class folders: 0.jpg"]),
        ("nested", ["train/cat/images: a folder among the images"]),
        ("broken link", ["train/cat/x.jpg: cannot be opened: No such file"]),
        ("truncated", ["1 of 15 images cannot be decoded", "train/cat/3.jpg", "--skip-unreadable"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path, how, parts):
    with pytest.raises(UserError) as error:
        opened(spoilt(tmp_path, how))
    for part in parts:
        assert part in str(error.value)


def test_a_class_folder_whose_name_is_not_utf8(tmp_path):
    root = write_folders(tmp_path / "set")
    for split in ("train", "val"):
        (root / split / "cat").rename(root / split / os.fsdecode(b"caf\xe9"))
    with pytest.raises(UserError, match=r"the name 'caf.udce9' is not UTF-8; rename"):
        opened(root)
