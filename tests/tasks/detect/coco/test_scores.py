"""COCO scores, under other areas, IoUs and limits too, of each class and with regions, against pycocotools."""

import re

import numpy as np
import pytest

from backbones.spec import resolve
from tasks.detect.coco import averages
from tasks.detect.coco.averages import RECALLS, Averager, _needed, by_class, resampled, scores
from tasks.detect.coco.matching import SCORE_PREFIX, Pairing
from tasks.detect.task import TASK
from tests.tasks.detect.coco.cases import drawn, encoded, evaluate, official, official_by_class, repeated, same
from tests.tasks.support import smoke_options
from tests.transfer.data.coco.coco_tree import content, objects, written
from transfer.core.errors import UsageError, UserError
from transfer.data.coco import split
from transfer.data.coco.dataset import open_coco
from transfer.data.coco.scoring import COCO, Scoring, scoring_of
from transfer.data.spec import DatasetSpec
from transfer.task import load_task


@pytest.mark.parametrize("kind", ["bbox", "segm"])
@pytest.mark.parametrize("area", [None, 0.0, -1.0])
def test_equal_to_pycocotools(area, kind):
    """A stated area of zero is a small one; a negative one lies in no range, so that its object counts neither way."""
    truth, results = drawn(3, crowded=True)
    changed = [] if area is None else truth["annotations"][::3]
    for one in changed:
        one["area"] = area
    matches = evaluate(truth, results, kind)
    ours = scores(matches)
    assert len(ours) == 12
    assert 0.03 < ours[f"{SCORE_PREFIX[kind]}_AP"] < 0.9
    same(ours, official(truth, results, kind))
    uncounted = sum(one["iscrowd"] or one["area"] < 0 for one in truth["annotations"])
    assert uncounted >= len(changed) * (area == -1)
    assert int((matches.truth_counted == 0).sum()) == uncounted


def of_one_image(objects, found):
    """The scores of boxes, each with its score, among objects of one category, each with its box; as pycocotools's."""
    place = {"image_id": 5, "category_id": 2}
    truth = {
        "images": [{"id": 5, "file_name": "a.jpg", "height": 200, "width": 200}],
        "categories": [{"id": 2, "name": "thing"}],
        "annotations": [{**place, "iscrowd": 0, **one, "id": number} for number, one in enumerate(objects, 1)],
    }
    results = [{**place, "bbox": box, "score": score} for box, score in found]
    ours = scores(evaluate(truth, results, "bbox"))
    assert ours == pytest.approx(official(truth, results, "bbox"))
    return ours


@pytest.mark.parametrize("iscrowd", [0, 1])
@pytest.mark.parametrize("area", [100.0, 32.0**2, 5000.0, 96.0**2])
def test_one_object_one_detection(area, iscrowd):
    """Sizes on the border between two ranges count in both; a crowd is never to be found."""
    one = {"bbox": [0, 0, 100, 80], "area": area, "iscrowd": iscrowd}
    found = of_one_image([one], [([0, 0, 100, 60], 0.5)])  # IoU 0.75
    assert bool(found) != bool(iscrowd)


def test_nothing_found_and_nothing_to_find():
    truth, results = drawn(1)
    same(scores(evaluate(truth, [], "bbox")), dict.fromkeys(official(truth, results, "bbox"), 0.0))
    assert scores(evaluate({**truth, "annotations": []}, results, "bbox")) == {}
    assert scores(evaluate({**truth, "images": [], "annotations": []}, [], "bbox")) == {}


def test_equal_overlaps_go_to_the_later_object():
    """A detection between two equal objects takes the later one, so the one behind it finds the earlier only."""
    objects = [{"bbox": [float(x), 0.0, 10.0, 10.0], "area": 100.0} for x in (0, 2)]
    found = of_one_image(objects, [([1.0, 0.0, 10.0, 10.0], 0.9), ([2.0, 0.0, 10.0, 10.0], 0.8)])
    assert found["box_AP75"] == pytest.approx(51 / 101)  # the second finds only an overlap of 2/3 free


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_repetitions(seed):
    truth, results = drawn(seed)
    weights = np.random.default_rng(seed).multinomial(12, np.full(12, 1 / 12))
    assert weights.max() > 1
    again = repeated(truth, results, weights)
    means = Averager(evaluate(truth, results, "bbox"), most=weights.max()).means(weights)
    found = {f"box_{name}": value for name, value in means.items()}
    assert found == scores(evaluate(*again, "bbox"))
    same(found, official(*again, "bbox"))
    assert found != scores(evaluate(truth, results, "bbox"))


def test_objects_needed_for_each_recall():
    """The first place at which a found share, as floating point has it, reaches the level."""
    numbers = np.arange(1, 400)
    for total, needed in zip(numbers, _needed(numbers)):
        shares = np.arange(1, total + 1) / total
        assert needed.tolist() == (np.searchsorted(shares, RECALLS) + 1).tolist()


def test_objects_without_masks():
    truth, results = drawn(0)
    crowd = next(one for one in truth["annotations"] if one["iscrowd"])
    full = encoded([[v for x, y in ((0, 0), (0, 1), (1, 1), (1, 0)) for v in (
        crowd["bbox"][0] + x * crowd["bbox"][2], crowd["bbox"][1] + y * crowd["bbox"][3])]])  # fmt: skip
    crowd["segmentation"] = full
    expected = scores(evaluate(truth, results, "segm"))
    del crowd["segmentation"]
    assert scores(evaluate(truth, results, "segm")) == expected
    plain = next(one for one in truth["annotations"] if not one["iscrowd"])
    plain["segmentation"] = []
    boxes, masks = (scores(evaluate(truth, results, kind)) for kind in ("bbox", "segm"))
    plain["iscrowd"] = 1
    assert masks == scores(evaluate(truth, results, "segm"))
    assert boxes != scores(evaluate(truth, results, "bbox"))


def test_without_the_library(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(split.importlib, "import_module", missing)
    truth, results = drawn(1)
    with pytest.raises(UserError, match=r"pip install -e '\.\[detection\]'"):
        evaluate(truth, results, "segm")
    assert scores(evaluate(truth, results, "bbox"))


def test_boxes_without_area_are_never_found():
    truth, results = drawn(2)
    for one, change in zip(truth["annotations"], ([5, 5, 0, 20], [9, 9, 30, 0], [20, 20, -4, 8])):
        one["bbox"] = [float(value) for value in change]
    same(scores(evaluate(truth, results, "bbox")), official(truth, results, "bbox"))


def stated(**options):
    return scoring_of(DatasetSpec(name="mine", format="coco", options=options))


@pytest.mark.parametrize("kind", ["bbox", "segm"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"areas": {"tiny": [0, 600], "rest": [600, None]}},
        {"ious": [0.25, 0.5]},
        {"ious": np.linspace(0.05, 0.95, 19).tolist(), "max_detections": [3]},
        {"max_detections": [1, 5, 300], "areas": {"mid": [400, 5000]}},
    ],
)
def test_every_class_is_scored_as_by_pycocotools(kind, options):
    truth, results = drawn(3, crowded=True)
    scoring = stated(**options)
    matches = Pairing.from_outcomes(evaluate(truth, results, kind, scoring).outcomes(), kind)
    expected = official_by_class(truth, results, kind, scoring)
    found = Averager(matches).by_class(np.ones(12, dtype=np.int64))
    np.testing.assert_allclose(found, [*expected.values()], atol=1e-9)
    assert np.isnan(found[0]).sum() == 1  # a class without an object
    means = {f"{SCORE_PREFIX[kind]}_{name}": np.nanmean(values) for name, values in expected.items()}
    assert scores(matches) == pytest.approx(means, abs=1e-9)
    assert load_task("detect").rescore(matches.outcomes()) == scores(matches)


def test_names_of_scores():
    assert [*COCO.numbers] == ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
    scoring = stated(areas={"tiny": [0, 600]}, ious=[0.25, 0.5], max_detections=[1, 300])
    assert [*scoring.numbers] == ["AP", "AP25", "AP50", "AP_tiny", "AR1", "AR300", "AR_tiny"]
    assert Scoring(**scoring.changed) == scoring
    assert stated(max_detections=[1, 10, 100], areas=None).changed == {}


def test_classes_are_resampled_with_the_images_of_the_score():
    matches = evaluate(*drawn(0), "bbox")
    table = by_class(matches, ("AP", "AP50"))
    assert table.shape == (501, 2, 4)
    np.testing.assert_allclose(np.nanmean(table[1:, 1], axis=1), resampled(matches)["resampled_box_AP50"])
    found = load_task("detect").by_class(["box_AP50"], matches.outcomes())
    assert [*found] == ["1", "3", "7"]
    images, of_class = found["7"]
    assert set(np.flatnonzero(images)) == {
        *matches.truth_image[(matches.truth_category == 2) & matches.truth_counted > 0]
    }
    assert of_class["box_AP50"].tolist() == pytest.approx(table[:, 1, 2].tolist(), nan_ok=True)


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        ("ious", ([0.5, 50], [0.75, 0.5], 0.5), "a list of up to 32 numbers between 0 and 1, the smallest first"),
        ("max_detections", ([0, 10], [1.5]), "a list of whole numbers from 1 on"),
        ("areas", ({"tiny": 600}, {"tiny": [600, 0]}, {}), "1 to 7 names, each with .SMALLEST, LARGEST. in square"),
    ],
)
def test_impossible_parameters_are_named(key, values, said):
    for value in values:
        with pytest.raises(UsageError, match=f"mine: `{key}` is {re.escape(repr(value))}; write {said}"):
            stated(**{key: value})


FLAGGED = {"ignore": 1, "segmentation": None}


def with_regions(root, **options):
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
    data = with_regions(tmp_path, **options)
    truth, classes = data.as_coco(data.val), "ignore_classes" in options
    found = [(201, 9, [4, 4, 9, 10], 0.5), (202, 7, [20, 5, 9, 9], 0.5)]
    wrong = [(201, 9, [10, 6, 4, 4], 0.9), (202, 7, [3, 3, 6, 6], 0.9)]
    results = [dict(zip(("image_id", "category_id", "bbox", "score"), one)) for one in found + wrong]

    def precision(results):
        return scores(averages.pair_detections(data, results, "bbox"))["box_AP"]

    expected = official(truth, results, "bbox")
    assert scores(averages.pair_detections(data, results, "bbox")) == pytest.approx(expected, abs=1e-9)
    without = [precision(results[:place] + results[place + 1 :]) > precision(results) for place in (2, 3)]
    assert without == [not classes, "ignore_flag" not in options], "what lies in a region is not wrong"
    assert len({one["id"] for one in truth["annotations"]}) == len(truth["annotations"])
    assert data.classes == (("bee", "cow") if classes else ("ant", "bee", "cow"))
    assert data.counts["val"]["crowds"] == bool(options)
    assert data.dropped["val"]["ignored"] == ("ignore_flag" not in options)
    assert (data.digest != with_regions(tmp_path / "plain").digest) == bool(options)


def test_unknown_words_of_regions_are_named(tmp_path):
    for options, said in (
        ({"ignore_classes": ["antt"]}, "`ignore_classes` has 'antt', which is no category; did you mean 'ant'"),
        ({"ignore_flag": "crowd"}, "`ignore_flag` is 'crowd'; it must be region"),
    ):
        with pytest.raises(UsageError, match=said):
            with_regions(tmp_path, **options)


def test_defaults_and_images_that_are_trained_on(tmp_path):
    data = with_regions(tmp_path, ignore_flag="region")
    drop, keep = (smoke_options("detect", *words) for words in ([], ["--empty-images", "keep"]))
    assert TASK.defaults_for_data(resolve("tiny"), data, drop)["ignore_iof"][0] == 0.7
    assert "ignore_iof" not in TASK.defaults_for_data(resolve("tiny"), with_regions(tmp_path), drop)
    assert [options.trains_on(data.train).sum() for options in (drop, keep)] == [3, 4]
    assert [TASK.epoch_steps(data, options) for options in (drop, keep)] == [3 // drop.batch_size, 4 // keep.batch_size]
