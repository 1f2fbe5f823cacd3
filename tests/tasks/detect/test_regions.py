"""Regions to be ignored, and images without objects: what is trained on, and what is scored."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tasks.detect import mmlab
from tasks.detect.coco.averages import evaluate, scores
from tasks.detect.pipelines import DetectionImages, train_transforms
from tasks.detect.task import TASK
from tests.tasks.detect.coco.cases import official
from tests.tasks.detect.scenes import an_object, described_split, scene
from tests.tasks.support import smoke_options
from tests.transfer.data.coco.coco_tree import content, objects, written
from transfer.core.errors import UsageError
from transfer.data.coco.dataset import open_coco
from transfer.data.spec import DatasetSpec

mmlab.load()

from mmdet.models.task_modules import MaxIoUAssigner  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402

from tasks.detect import targets  # noqa: E402

FLAGGED = {"ignore": 1, "segmentation": None}


def opened(root, **options):
    """Category 2 is a region in one validation image, and an object of category 7 has `ignore: 1`."""
    val = content("val")
    val["annotations"] = objects(
        (201, 9, [4, 4, 10, 10]), (201, 2, [8, 4, 12, 12]), (202, 7, [2, 2, 8, 8], FLAGGED), (202, 7, [20, 5, 9, 9]),
        (203, 9, [0, 0, 12, 12]),
    )  # fmt: skip
    return open_coco(
        DatasetSpec(name="tiny", format="coco", root=(str(written(root, val=val)),), options=options), None
    )


@pytest.mark.parametrize("options", [{}, {"ignore_flag": "region"}, {"ignore_classes": ["ant"]}])
def test_regions_are_scored_as_cocos_crowds(tmp_path, options):
    data = opened(tmp_path, **options)
    truth, classes = data.as_coco(data.val), "ignore_classes" in options
    found = [(201, 9, [4, 4, 9, 10], 0.5), (202, 7, [20, 5, 9, 9], 0.5)]
    wrong = [(201, 9, [10, 6, 4, 4], 0.9), (202, 7, [3, 3, 6, 6], 0.9)]
    results = [dict(zip(("image_id", "category_id", "bbox", "score"), one)) for one in found + wrong]

    def precision(results):
        return scores(evaluate(truth, results, "bbox"))["box_AP"]

    expected = official(truth, [{**one, "segmentation": None} for one in results], "bbox")
    assert scores(evaluate(truth, results, "bbox")) == pytest.approx(expected, abs=1e-9)
    without = [precision(results[:place] + results[place + 1 :]) > precision(results) for place in (2, 3)]
    assert without == [not classes, "ignore_flag" not in options], "what lies in a region is not wrong"
    assert len({one["id"] for one in truth["annotations"]}) == len(truth["annotations"])
    assert data.classes == (("bee", "cow") if classes else ("ant", "bee", "cow"))
    assert data.counts["val"]["crowds"] == bool(options)
    assert data.dropped["val"]["ignored"] == ("ignore_flag" not in options)
    assert (data.digest != opened(tmp_path / "plain").digest) == bool(options)


def test_unknown_words_of_regions_are_named(tmp_path):
    for options, said in (
        ({"ignore_classes": ["antt"]}, "`ignore_classes` has 'antt', which is no category; did you mean 'ant'"),
        ({"ignore_flag": "crowd"}, "`ignore_flag` is 'crowd'; it must be region, or left out"),
    ):
        with pytest.raises(UsageError, match=said):
            opened(tmp_path, **options)


def test_regions_without_masks_pass_the_crops(tmp_path):
    objects_ = [an_object((20, 10, 30, 30)), an_object((60, 20, 40, 40), iscrowd=1, segmentation=None)]
    scene((120, 80)).save(tmp_path / "a.png")
    split = described_split(tmp_path, [("a.png", (120, 80), objects_)])
    images = DetectionImages(split, train_transforms("jitter", (80, 120), 0.0, True))
    regions = [images[0, 0, number]["data_samples"].ignored_instances for number in range(20)]
    boxes = np.concatenate([one.bboxes.tensor.numpy() for one in regions])
    assert 10 < len(boxes) <= 20
    assert (boxes[:, 2:] - boxes[:, :2] > 1).all()


@pytest.mark.parametrize("count", [0, 2])
def test_anchors_within_regions_train_nothing(count):
    """With objects as mmdetection's own assigner, and without, where it takes them for background."""
    corners = 64 * torch.rand(300, 2, generator=torch.Generator().manual_seed(0))
    priors = InstanceData(priors=torch.cat([corners, corners + 20], dim=1))
    truth = InstanceData(bboxes=priors.priors[:count] + 1, labels=torch.arange(count))
    regions = SimpleNamespace(bboxes=torch.tensor([[20.0, 10, 70, 60]]))
    assigner = MaxIoUAssigner(0.7, 0.3, min_pos_iou=0.3, ignore_iof_thr=0.7)
    found = assigner.assign(priors, truth, regions).gt_inds
    shares = assigner.iou_calculator(priors.priors, regions.bboxes, mode="iof")[:, 0]
    assert 20 < (shares > 0.7).sum() < 280
    assert (found[shares > 0.7] == -1).all() and (found[shares <= 0.7] == 0).sum() > 100  # noqa: PT018
    assert count == 0 or torch.equal(found, targets.assign_to_objects(assigner, priors, truth, regions).gt_inds)


def test_defaults_and_images_that_are_trained_on(tmp_path):
    data = opened(tmp_path, ignore_flag="region")
    drop, keep = (smoke_options("detect", *words) for words in ([], ["--empty-images", "keep"]))
    assert TASK.defaults_for_data(data, drop)["ignore_iof"][0] == 0.7
    assert "ignore_iof" not in TASK.defaults_for_data(opened(tmp_path), drop)
    assert [options.trains_on(data.train).sum() for options in (drop, keep)] == [3, 4]
    assert [TASK.epoch_steps(data, options) for options in (drop, keep)] == [3 // drop.batch_size, 4 // keep.batch_size]
