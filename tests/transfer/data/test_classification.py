"""Folders of classes: labels, splits, what programs leave beside images, links that lead back, what is held out."""

import re
import shutil
from unicodedata import normalize

import numpy as np
import pytest

from tests.transfer.data.layouts import encoded, spec, write_folders, write_images
from transfer.core.errors import UsageError, UserError
from transfer.data import classification
from transfer.data.classification import open_classification


@pytest.fixture
def root(tmp_path):
    return write_folders(tmp_path / "set")


def opened(root, given=None, **facts):
    """The set with these facts, by these arguments of `open_classification`."""
    return open_classification(spec("image_folder", root, **facts), None, **given or {})


def test_labels_are_positions_of_sorted_folders(tmp_path):
    data = opened(write_folders(tmp_path / "set", classes=("dog", "bird", "Cat")))
    assert data.classes == ("Cat", "bird", "dog")
    assert data.train.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert data.train.labels.dtype == np.int64
    assert list(data.val.names) == ["Cat/0.jpg", "Cat/1.jpg", "bird/0.jpg", "bird/1.jpg", "dog/0.jpg", "dog/1.jpg"]
    assert data.counts == {"train": {"images": 15, "classes": 3}, "val": {"images": 6, "classes": 3}, "ignored": 0}
    assert data.train.read(3).size == (16, 12)
    assert data.train.encoded(5) == encoded(1, 0)


@pytest.mark.parametrize(
    ("there", "scored", "notes"),
    [
        ("train val", "val", ["evaluated on val/"]),
        ("train valid test", "valid", ["evaluated on valid/, not test/"]),
        ("train validation test valid", "validation", ["evaluated on validation/, not valid/, test/"]),
        ("train dev test", "dev", ["evaluated on dev/, not test/"]),
        ("train test", "test", ["evaluated on test/"]),
        ("test", "test", ["evaluated on test/"]),
        ("train valid: test", "test", ["valid/ has no class folders", "evaluated on test/"]),
        ("train test:", None, ["test/ has no class folders"]),
        ("train test-", None, ["test/ has no images"]),
        ("train val! test", "test", ["val/ has no class folder of those in train/", "evaluated on test/"]),
    ],
)
def test_which_split_is_scored(tmp_path, there, scored, notes):
    """`name:` stands for a folder of images without classes, `name-` for classes without images, `name!` for others."""
    for key, name in enumerate(there.split()):
        for label in ("a", "b"):
            folder = tmp_path / "set" / name.rstrip(":-!") / {":": "", "!": label * 2}.get(name[-1], label)
            write_images(folder, 0 if name.endswith("-") else 2, key, ord(label))
    data = opened(tmp_path / "set")
    assert list(data.notes) == notes
    assert (data.val and data.val.encoded(0)) == (scored and encoded(there.split().index(scored), ord("a"), 0))


def test_class_folders_are_in_the_order_of_their_numbers(tmp_path):
    data = opened(write_folders(tmp_path / "set", classes=[str(number) for number in (10, 2, 0, 1)]))
    assert data.classes == ("0", "1", "2", "10")
    assert data.train.encoded(15) == encoded(0, 0)  # the first of class 10
    assert opened(write_folders(tmp_path / "mixed", classes=("10", "2", "x"))).classes == ("10", "2", "x")


def test_classes_have_one_order_in_all_forms_of_their_names(tmp_path):
    """Accents of one split's folders are marks of their own."""
    classes = ("cafx", "caf\u00e9", "z", "\u00e9cole")
    for forms in (("NFC", "NFD"), ("NFD", "NFC")):
        for split, form in zip(("train", "val"), forms):
            for label, name in enumerate(classes):
                write_images(tmp_path / forms[0] / split / normalize(form, name), 2, label, len(split))
        data = opened(tmp_path / forms[0])
        assert data.classes == classes
        assert data.val.labels.tolist() == data.train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert [data.train.encoded(2), data.val.encoded(2)] == [encoded(1, 5, 0), encoded(1, 3, 0)]


@pytest.mark.parametrize("form", ["images", "image_folder"])
def test_images_without_labels(tmp_path, form):
    folder = write_images(tmp_path / "train", 3, 0)
    if form == "images":
        write_images(folder / "more" / "still", 2, 1)
    data = open_classification(spec(form, folder if form == "images" else tmp_path), None)
    assert (data.classes, data.val) == ((), None)
    assert data.counts["train"] == {"images": len(data.train), "classes": 0}
    assert data.train.encoded(len(data.train) - 1) == (encoded(1, 1) if form == "images" else encoded(0, 2))
    assert data.notes == (f"{len(data.train)} images without labels",)


def test_keys_name_the_folders(tmp_path):
    root = write_folders(tmp_path / "set", val_name="test")
    assert len(opened(root).val) == 6
    (root / "train").rename(root / "fit")
    assert len(opened(root, train="fit").train) == 15
    with pytest.raises(UserError, match=r"set: absent/ not found \(key `val`\)"):
        opened(root, val="absent")
    with pytest.raises(UsageError, match="`train` is 3"):
        opened(root, train=3)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: write_images(root / "val" / "cow", 1), "only in validation: cow"),
        (lambda root: (root / "train" / "ant").mkdir(), "1 class(es) without training images: ant"),
        (lambda root: shutil.rmtree(root / "train") or (root / "train").mkdir(), "no images found in"),
        (lambda root: (root / "train" / "0.jpg").touch(), "1 image(s) outside the class folders: 0.jpg"),
        (lambda root: (root / "train/cat/x.jpg").symlink_to("nowhere"), "train/cat/x.jpg: cannot be opened: No such"),
        (lambda root: (root / "train/dog/cats").symlink_to("../cat"), "have a folder in common by a link: cat and dog"),
    ],
)
def test_what_is_wrong_is_named(root, spoil, said):
    spoil(root)
    with pytest.raises(UserError, match=re.escape(said)):
        opened(root)


def test_an_image_in_two_classes_and_classes_that_are_not_scored_are_noted(root):
    (root / "train" / "dog" / "copy.jpg").write_bytes(encoded(1, 0))
    shutil.rmtree(root / "val" / "bird")
    data = opened(root)
    assert data.val.labels.tolist() == [1, 1, 2, 2]
    *_, lacking, doubled = data.notes
    assert lacking == "val: no image of 1 of 3 classes: bird"
    assert doubled == "train: 1 images are also in another class: cat/0.jpg = dog/copy.jpg"


FOLDERS = ("@eaDir/0.jpg", ".thumbnails", "__MACOSX", ".dropbox.cache/x", "#recycle", "$RECYCLE.BIN", "thumbnails")
FILES = ("._0.jpg", ".0.jpg", "SYNOPHOTO_THUMB_XL.jpg", "Thumbs.db", "desktop.ini")


def test_what_programs_leave_is_neither_a_class_nor_an_image(root):
    clean = opened(root)
    for place in ("", "train", "train/cat", "train/cat/more", "val/dog"):
        for name in FOLDERS:
            write_images(root / place / name, 1, 7)
        for name in FILES:
            write_images(root / place, 0)
            (root / place / name).write_bytes(b"")
    for name in ("dog/x.heic", "dog/y.part", "cat/z.eps", "dog/labels.csv"):
        (root / "train" / name).touch()
    write_images(root / "drafts", 1)
    data = opened(root)
    assert (data.digest, data.classes) == (clean.digest, clean.classes)
    assert data.counts["ignored"] == 4 * (len(FOLDERS) + len(FILES)) + 4
    assert "36 skipped, left by programs: " in data.notes[1]
    assert data.notes[2] == "4 skipped, not images: cat/z.eps, dog/labels.csv, dog/x.heic and 1 more"
    assert data.notes[-1] == "1 skipped, beside the splits: drafts/"


def test_links_are_followed_once_and_not_back(root, tmp_path):
    pool = write_images(tmp_path / "pool" / "cats", 2, 9)
    (pool / "up").symlink_to("..")
    (root / "train" / "self").symlink_to(".")
    (root / "train" / "cat" / "loop.jpg").symlink_to("loop.jpg")
    for name, target in (("a", pool), ("b", pool), ("loop", root), ("z", root / "train" / "cat" / "real")):
        (root / "train" / "cat" / name).symlink_to(target)
    write_images(root / "train" / "cat" / "real", 1, 8)
    data = opened(root)
    assert data.classes == ("bird", "cat", "dog")
    linked = [name for name in data.train.names if name.count("/") > 1]
    assert linked == ["cat/a/0.jpg", "cat/a/1.jpg", "cat/real/0.jpg"]
    assert "6 skipped, links to folders that are read already: self -> ., cat/a/up -> .., cat/b/ -> " in data.notes[1]


def test_counts_are_compared(root):
    with pytest.raises(UserError, match="train images: expected 16, found 15"):
        opened(root, counts={"train": {"images": 16}})
    for counts in ({"training": {"images": 15}}, {"train": {"image": 15}}):
        with pytest.raises(UsageError, match="unknown entry"):
            opened(root, counts=counts)


def test_damaged_images_are_left_out_on_demand(root, monkeypatch):
    """Of a large set all are decoded at the start only where they are to be left out."""
    (root / "train/cat/0.jpg").write_bytes(encoded(0)[:300])
    with pytest.raises(UserError, match="cannot be read"):
        opened(root)
    with monkeypatch.context() as patch:
        patch.setattr(classification, "CHECKED_AT_ONCE", 20)
        large = opened(root).train
        with pytest.raises(UserError, match=r"train/cat/0\.jpg: cannot be read as an image"):
            large.read(list(large.names).index("cat/0.jpg"))
        assert opened(root, {"drop_corrupt": True}).skipped == 1
    (root / "val/dog/1.jpg").write_bytes(encoded(0)[:300])
    data = opened(root, {"drop_corrupt": True})
    assert (data.skipped, len(data.train), len(data.val)) == (2, 14, 5)
    assert "cat/0.jpg" not in data.train.names
    assert data.counts["train"] == {"images": 14, "classes": 3}
    for number in range(1, 5):
        (root / f"train/cat/{number}.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"all train images of 1 class\(es\) are corrupt: cat"):
        opened(root, {"drop_corrupt": True})


def test_held_out_images_are_a_share_of_each_class_and_train_nothing_and_a_subset_bounds_both_splits(root):
    """At least one of each class's five; a fraction of the labels is taken of the others."""
    held, part = (opened(root, {"label_fraction": share}, held_out=0.3) for share in (1, 0.5))
    whole = opened(root)
    split = {"train": {"images": 9, "classes": 3}, "held_out": {"images": 6, "classes": 3}}
    assert held.counts == whole.counts | split
    assert [*held.counts] == ["train", "held_out", "val", "ignored"]  # the last split with classes is the one scored
    assert sorted([*held.train.names, *held.held_out.names]) == sorted(whole.train.names)
    assert (list(held.val.names), whole.held_out) == (list(whole.val.names), None)
    assert held.digest != whole.digest
    assert list(part.held_out.names) == list(held.held_out.names)
    assert {*part.train.names} < {*held.train.names}
    data = opened(root, {"subset": 4, "label_fraction": 0.5})
    assert (data.counts["train"]["images"], data.counts["val"]["images"]) == (6, 6)
