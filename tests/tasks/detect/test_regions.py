"""Regions to be ignored, and images without objects: what is trained on, and what is scored."""

import pytest

from backbones.spec import resolve
from tasks.detect.coco.averages import evaluate, scores
from tasks.detect.task import TASK
from tests.tasks.detect.coco.cases import official
from tests.tasks.support import smoke_options
from tests.transfer.data.coco.coco_tree import content, objects, written
from transfer.core.errors import UsageError
from transfer.data.coco.dataset import open_coco
from transfer.data.spec import DatasetSpec

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
        return scores(evaluate(data, results, "bbox"))["box_AP"]

    expected = official(truth, [{**one, "segmentation": None} for one in results], "bbox")
    assert scores(evaluate(data, results, "bbox")) == pytest.approx(expected, abs=1e-9)
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


def test_defaults_and_images_that_are_trained_on(tmp_path):
    data = opened(tmp_path, ignore_flag="region")
    drop, keep = (smoke_options("detect", *words) for words in ([], ["--empty-images", "keep"]))
    assert TASK.defaults_for_data(resolve("tiny"), data, drop)["ignore_iof"][0] == 0.7
    assert "ignore_iof" not in TASK.defaults_for_data(resolve("tiny"), opened(tmp_path), drop)
    assert [options.trains_on(data.train).sum() for options in (drop, keep)] == [3, 4]
    assert [TASK.epoch_steps(data, options) for options in (drop, keep)] == [3 // drop.batch_size, 4 // keep.batch_size]
