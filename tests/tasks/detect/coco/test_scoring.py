"""Scores under other areas, IoUs and limits, and of each class, against pycocotools with the same parameters."""

import re

import numpy as np
import pytest

from tasks.detect.coco.averages import Averager, by_class, resampled, scores
from tasks.detect.coco.matching import PREFIX, Matches
from tests.tasks.detect.coco.cases import drawn, evaluate, official_by_class
from transfer.core.errors import UsageError
from transfer.data.coco.scoring import COCO, Scoring, scoring_of
from transfer.data.spec import DatasetSpec
from transfer.task import load_task


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
    matches = Matches.from_outcomes(evaluate(truth, results, kind, scoring).outcomes(), kind)
    expected = official_by_class(truth, results, kind, scoring)
    found = Averager(matches).by_class(np.ones(12, dtype=np.int64))
    np.testing.assert_allclose(found, [*expected.values()], atol=1e-9)
    assert np.isnan(found[0]).sum() == 1  # a class without an object
    means = {f"{PREFIX[kind]}_{name}": np.nanmean(values) for name, values in expected.items()}
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
