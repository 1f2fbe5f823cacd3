"""Which objects train, and what the others are to a detector."""

import numpy as np

from tasks.detect.pipelines import as_mmdet_sample
from tests.tasks.detect.scenes import CATEGORIES, an_object, described_split

LAND = (120, 80)


def test_objects_that_train_are_those_of_mmdetections_own_reader(tmp_path):
    """But for boxes, which are clipped here."""
    from mmdet.datasets import CocoDataset

    boxes = [(5, 5, 30, 20), (5, 5, 0.99, 20), (5, 5, 20, 0.5), (5, 5, 1, 1), (-0.5, 5, 1, 9), (119.9, 5, 9, 9),
             (120, 5, 9, 9), (5, -9, 9, 9), (-3, -3, 9, 9), (40, 40, 1.2, 1.2)]  # fmt: skip
    objects = list(map(an_object, boxes))
    objects += [an_object((50, 50, 9, 9), area=0.0), an_object((60, 60, 9, 9), area=-1.0)]
    objects += [an_object((70, 50, 9, 9), ignore=1), an_object((80, 50, 9, 9), ignore=1, iscrowd=1)]
    objects += [an_object((90, 50, 9, 9), ignore=0), an_object((95, 50, 9, 9), iscrowd=1)]
    split = described_split(tmp_path, [("a.png", LAND, objects)])
    about = {"metainfo": {"classes": tuple(CATEGORIES.values())}, "data_prefix": {"img": ""}, "pipeline": []}
    theirs = CocoDataset(ann_file=str(tmp_path / "instances.json"), **about).get_data_info(0)["instances"]
    ours = split.boxes[split.trained]
    corners = np.concatenate([ours[:, :2], ours[:, :2] + ours[:, 2:]], axis=1)
    assert corners.tolist() == [one["bbox"] for one in theirs if not one["ignore_flag"]]
    sample = as_mmdet_sample(split, 0)["instances"]
    assert [one["ignore_flag"] for one in sample] == [one["ignore_flag"] for one in theirs]
    assert 0 < len(ours) < len(objects)
