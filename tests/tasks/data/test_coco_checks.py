import re

import numpy as np
import pytest

from backbones.errors import UserError
from tasks.data.coco_checks import rle_fault
from tests.tasks.data.coco_tree import CROWD, changed, opened, written


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the list `annotations`, `categories`, `images` is missing"),
        ('{"images": [], "categories": []}', "the list `annotations` is missing (files without"),
        ('{"images": [3], "categories": [], "annotations": []}', "entry 0 of `images` (id None): `id` is missing"),
        (changed("images", 1, id="a1"), "`id` is 'a1'"),
        (changed("images", 1, width=40.5), "entry 1 of `images` (id 101): `width` is 40.5; it must be a whole"),
        (changed("annotations", 0, bbox=[1, 2, 3]), "`bbox` is [1, 2, 3]; it must be a list of four numbers"),
        (changed("annotations", 0, bbox=[1, 2, 3, float("nan")]), "`bbox` is [1, 2, 3, nan]"),
        (changed("annotations", 0, area=float("inf")), "`area` is inf"),
        (changed("annotations", 0, segmentation=[[1, 2, 3, 4, 5, float("inf")]]), "`segmentation` is [[1, 2, 3"),
        (changed("annotations", 0, segmentation=CROWD | {"counts": 5}), "`segmentation` is {"),
        (changed("annotations", 0, area="large"), "`area` is 'large'; it must be a number"),
        (changed("annotations", 0, segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "`segmentation` is [[1, 2, 3"),
        (changed("images", 0, id=101), "`images` has 1 duplicate values of `id`: 101"),
        (changed("images", 0, file_name="train1.jpg"), "duplicate values of `file_name`: train1.jpg"),
        (changed("annotations", 0, id=4), "`annotations` has 1 duplicate values of `id`: 4"),
        (changed("annotations", 0, image_id=999), "1 annotations have an `image_id` that `images` does not list: 999"),
        (changed("annotations", 0, category_id=3), "`category_id` that `categories` does not list: 3"),
        (changed("annotations", 2, segmentation=CROWD | {"size": [40, 30]}), "annotation 3: its `size` is [40, 30]"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": [5]}), "annotation 3: its `counts` add up to 5"),
    ],
)  # fmt: skip
def test_files_that_are_not_cocos(tmp_path, given, message):
    with pytest.raises(UserError, match=rf"instances_train2017\.json: .*{re.escape(message)}"):
        opened(written(tmp_path, train=given))


def test_compressed_encodings():
    from pycocotools import mask

    rng = np.random.default_rng(0)
    for fill in (0.0, 0.02, 0.5, 1.0):
        rle = mask.encode(np.asfortranarray(rng.random((30, 40)) < fill).astype(np.uint8))
        text = rle["counts"].decode()
        assert rle_fault({"size": [30, 40], "counts": text}, 30, 40) is None
        assert rle_fault({"size": [30, 40], "counts": text + "1"}, 30, 40) is not None
        assert rle_fault({"size": [30, 40], "counts": text[:-1]}, 30, 40) is not None
