import re
import shutil

import numpy as np
import pytest

from tests.transfer.data.layouts import encoded, spec, write_folders, write_images
from transfer.core.errors import UsageError, UserError
from transfer.data.classification import open_classification


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


def test_a_scored_split_may_lack_classes(tmp_path):
    root = write_folders(tmp_path / "set", val=0)
    (root / "val" / "bird").rmdir()
    write_images(root / "val" / "dog", 2, 9)
    data = opened(root)
    assert data.val.labels.tolist() == [2, 2]
    assert data.notes[-1] == "val: no image of 2 of 3 classes: bird, cat"


def test_what_lies_beside_the_images_of_a_class(tmp_path):
    root = write_folders(tmp_path / "set")
    write_images(root / "train" / "cat" / "images", 2, 7)
    write_images(root / "train" / "cat" / ".ipynb_checkpoints", 1, 8)
    for name in ("dog/x.heic", "dog/y.part", "cat/images/z.eps", "cat/Thumbs.db", "dog/labels.csv", "dog/._0.jpg"):
        (root / "train" / name).touch()
    data = opened(root)
    inner = [name for name in data.train.names if name.startswith("cat/images")]
    assert inner == ["cat/images/0.jpg", "cat/images/1.jpg"]
    assert data.train.labels.tolist() == [0] * 5 + [1] * 7 + [2] * 5
    assert data.counts["ignored"] == 7
    assert data.notes[1:] == (
        "3 skipped, left by programs: cat/.ipynb_checkpoints/, cat/Thumbs.db, dog/._0.jpg",
        "4 skipped, not images: cat/images/z.eps, dog/labels.csv, dog/x.heic and 1 more",
    )


def test_accents_of_one_folder_are_marks_of_their_own(tmp_path):
    write_folders(tmp_path / "set", classes=("caf\u00e9", "bar"))
    (tmp_path / "set" / "val" / "caf\u00e9").rename(tmp_path / "set" / "val" / "cafe\u0301")
    data = opened(tmp_path / "set")
    assert data.classes == ("bar", "caf\u00e9")
    assert data.val.labels.tolist() == [0, 0, 1, 1]
    assert data.val.encoded(2) == encoded(100, 0)


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
    ],
)
def test_what_is_wrong_is_named(tmp_path, spoil, said):
    root = write_folders(tmp_path / "set")
    spoil(root)
    with pytest.raises(UserError, match=re.escape(said)):
        opened(root)


def test_an_image_in_two_classes_is_noted(tmp_path):
    root = write_folders(tmp_path)
    first, second = sorted(path for path in (root / "train").iterdir() if path.is_dir())[:2]
    copied = next(first.iterdir())
    (second / "copy.jpg").write_bytes(copied.read_bytes())
    assert any("1 images are also in another class" in note for note in opened(root).notes)
