import os
import re

import numpy as np
import pytest

from tests.transfer.data.coco.coco_tree import CROWD, changed, opened, written
from transfer.core.cache import cache_folder
from transfer.core.errors import UserError
from transfer.data.coco import annotations
from transfer.data.coco.annotations import read_split
from transfer.data.coco.split import Segmentations


@pytest.fixture(autouse=True)
def small_files_are_indexed(monkeypatch):
    monkeypatch.setattr(annotations, "INDEXED", 0)


def plain(file):
    """Everything that is read of a file."""
    split, classes, dropped = read_split("train", file, file.parent)
    facts = {name: np.asarray(value).tolist() for name, value in vars(split).items() if name != "segmentations"}
    return facts | {"masks": list(split.segmentations), "classes": classes, "dropped": dropped}


def test_the_index_gives_what_the_file_does_and_an_incomplete_one_is_ignored(tmp_path, monkeypatch):
    file = written(tmp_path) / "annotations" / "instances_train2017.json"
    os.utime(file, (0, 0))  # long ago, so that the content is certain to be that of its stamp
    parsed, parse = [], annotations._parse
    monkeypatch.setattr(annotations, "_parse", lambda *given: parsed.append(file) or parse(*given))
    read, indexed = plain(file), plain(file)
    assert (read, len(read["images"]), len(parsed)) == (indexed, 4, 1)
    next((cache_folder() / "indexes").glob("*/label.npy")).unlink()
    assert (plain(file), len(parsed)) == (read, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the list `annotations`, `categories`, `images` is missing"),
        ('{"images": [], "categories": []}', "the list `annotations` is missing (files without"),
        (changed("images", 1, id="a1"), "`id` is 'a1'"),
        (changed("images", 1, width=40.5), "entry 1 of `images` (id 101): `width` is 40.5; it must be a whole"),
        (changed("annotations", 0, bbox=[1, 2, 3, float("nan")]), "`bbox` is [1, 2, 3, nan]"),
        (changed("annotations", 0, segmentation=[[1, 2, 3, 4, 5, float("inf")]]), "`segmentation` is [[1, 2, 3"),
        (changed("annotations", 0, area="large"), "`area` is 'large'; it must be a number"),
        (changed("annotations", 0, segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "`segmentation` is [[1, 2, 3"),
        (changed("images", 0, id=101), "`images` has 1 duplicate values of `id`: 101"),
        (changed("images", 0, file_name="train1.jpg"), "duplicate values of `file_name`: train1.jpg"),
        (changed("annotations", 0, id=4), "`annotations` has 1 duplicate values of `id`: 4"),
        (changed("annotations", 0, image_id=999), "1 annotations have an `image_id` that `images` does not list: 999"),
        (changed("annotations", 0, category_id=3), "`category_id` that `categories` does not list: 3"),
        (changed("annotations", 2, segmentation=CROWD | {"size": [40, 30]}), "of 1200 pixels and of `size` [40"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": [5]}), "annotation 3 is of 5 pixels"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": "not"}), "(id 3): `segmentation` is {'size': [30"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": "5"}), "annotation 3 is of 5 pixels"),
        (changed("annotations", 0, bbox=[9, 9, -4, 5]), "1 of 4 boxes have a negative width or height (annotations 1)")
    ]
)  # fmt: skip
def test_files_that_are_not_cocos(tmp_path, given, message):
    with pytest.raises(UserError, match=rf"instances_train2017\.json: .*{re.escape(message)}"):
        opened(written(tmp_path, train=given))


VALUES = [
    None,
    [[1.5, 2, 3.25, 4, 0.1, 7]],
    {"size": [3, 4], "counts": [12]},
    [[1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4, 3, 2]],
    None,
    {"size": [3, 4], "counts": "<0"},
    [[0.1, 1e-9, 1e300, 2**52 + 1, 5, 6]],
]


def test_values_come_back_as_they_were_and_parts_share_the_coordinates():
    segmentations = Segmentations.collect(VALUES)
    assert list(segmentations) == VALUES
    assert segmentations.present.tolist() == [value is not None for value in VALUES]
    chosen = segmentations.select(np.array([6, 0, 2, 3]))
    assert list(chosen) == [VALUES[row] for row in (6, 0, 2, 3)]
    assert list(chosen.select(np.array([3]))) == [VALUES[3]]
    assert chosen.block is segmentations.block
    assert list(Segmentations.collect([])) == []
