"""What programs leave beside images, and links that lead back."""

import re

import pytest

from tests.transfer.data.layouts import spec, write_folders, write_images
from transfer.core.errors import UserError
from transfer.data.classification import open_classification
from transfer.data.listing import listed, scan_images

FOLDERS = ("@eaDir/0.jpg", ".thumbnails", "__MACOSX", ".dropbox.cache/x", "#recycle", "$RECYCLE.BIN", "thumbnails")
FILES = ("._0.jpg", ".0.jpg", "SYNOPHOTO_THUMB_XL.jpg", "Thumbs.db", "desktop.ini")


def test_what_programs_leave_is_neither_a_class_nor_an_image(tmp_path):
    root = write_folders(tmp_path / "set")
    clean = open_classification(spec("image_folder", root), None)
    for place in ("", "train", "train/cat", "train/cat/more", "val/dog"):
        for name in FOLDERS:
            write_images(root / place / name, 1, 7)
        for name in FILES:
            write_images(root / place, 0)
            (root / place / name).write_bytes(b"")
    write_images(root / "drafts", 1)
    data = open_classification(spec("image_folder", root), None)
    assert (data.digest, data.classes) == (clean.digest, clean.classes)
    assert data.counts["ignored"] == 4 * (len(FOLDERS) + len(FILES))
    assert "36 skipped, left by programs: " in data.notes[1]
    assert data.notes[-1] == "1 skipped, beside the splits: drafts/"
    assert scan_images(root / "drafts")[:2] == (["0.jpg"], [])


def test_links_are_followed_once_and_not_back(tmp_path):
    root, pool = write_folders(tmp_path / "set"), write_images(tmp_path / "pool" / "cats", 2, 9)
    (pool / "up").symlink_to("..")
    (root / "train" / "self").symlink_to(".")
    for name, target in (("a", pool), ("b", pool), ("loop", root), ("z", root / "train" / "cat" / "real")):
        (root / "train" / "cat" / name).symlink_to(target)
    write_images(root / "train" / "cat" / "real", 1, 8)
    data = open_classification(spec("image_folder", root), None)
    assert data.classes == ("bird", "cat", "dog")
    linked = [name for name in data.train.names if name.count("/") > 1]
    assert linked == ["cat/a/0.jpg", "cat/a/1.jpg", "cat/real/0.jpg"]
    assert "5 skipped, links to folders that are read already: self -> ., cat/a/up -> .., cat/b/ -> " in data.notes[1]


def test_a_folder_of_two_classes_is_refused(tmp_path):
    root = write_folders(tmp_path / "set")
    (root / "train" / "dog" / "cats").symlink_to(root / "train" / "cat")
    with pytest.raises(
        UserError, match=re.escape("train: classes have a folder in common by a link: cat and dog; remove the link")
    ):
        open_classification(spec("image_folder", root), None)


def test_a_link_to_itself_is_left_out(tmp_path):
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    assert listed(tmp_path) == ([], [], ["loop.jpg -> loop.jpg"])
