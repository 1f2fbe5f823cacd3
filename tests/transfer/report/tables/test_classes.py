"""Scores by class in the table of a report, from the outcomes that runs keep."""

from pathlib import Path

import numpy as np
import pytest

from tasks.segment.scoring import resampled
from tests.tasks.detect.coco.cases import official_by_class
from tests.transfer.comparison.test_paired_outcomes import coco_run, drawn_coco
from tests.transfer.records.recorded import scored
from transfer.core.errors import UserError
from transfer.data.coco.scoring import COCO
from transfer.records.run_set import RunSet
from transfer.report.sections import ReportRequest, sections
from transfer.report.tables.text import note_texts
from transfer.task import load_task

NAMES = {"1": "ant", "3": "bee", "7": "cow", "18": "dog"}


def test_every_class_has_its_score_with_an_interval(tmp_path: Path) -> None:
    run = coco_run(tmp_path / "a", 0)
    run.record.details["classes"] = NAMES
    (section,) = sections(RunSet.of([run]), ReportRequest(per_class=True))
    table = section.table
    assert table is not None
    assert table["class"] == ["ant", "bee", "cow"]
    for kind, score in (("bbox", "box_AP"), ("segm", "mask_AP")):
        expected = official_by_class(*drawn_coco(0), kind, COCO)["AP"]
        assert table[score] == pytest.approx((100 * expected[:3]).tolist())
        assert np.mean(table[score]) == pytest.approx(run.record.shown(score))
        for value, low, high in zip(table[score], table[f"{score} low"], table[f"{score} high"], strict=True):
            assert 0 <= low < value < high < 100
    assert note_texts(table.notes) == ["toy_market: not in the test images, so no score: dog"]


def test_an_interval_of_a_class_is_over_the_images_in_which_it_occurs(tmp_path: Path) -> None:
    """A class in one of 40 images has none; one in five, of which no pixel is right, may be up to 45 % better."""
    labelled = np.zeros((40, 3))
    labelled[:, 0], labelled[3, 1], labelled[:5, 2] = 60, 10, 30
    right = labelled * np.array([0.7, 0, 0]) + np.random.default_rng(0).integers(0, 9, (40, 1)) * np.array([1, 0, 0])
    outcomes = {"intersection": right, "union": 1.2 * labelled, "labelled": labelled}
    outcomes |= {"sample": np.array([f"{place}.png" for place in range(40)]), "cluster": np.arange(40)}
    outcomes |= resampled(outcomes)
    run = scored(tmp_path, "segment", outcomes, "a", scores=load_task("segment").rescore(outcomes))
    (section,) = sections(RunSet.of([run]), ReportRequest(per_class=True))
    assert section.table is not None
    rows = [[row.get(name) for name in ("class", "mIoU low", "mIoU high")] for row in section.table.rows]
    assert rows[0][2] - rows[0][1] < 10
    assert rows[1:] == [["1", None, None], ["2", 0.0, pytest.approx(100 * (1 - 0.05 ** (1 / 5)))]]


def test_other_scores_are_asked_for_by_name(tmp_path: Path) -> None:
    runs = [coco_run(tmp_path / "a", 0)]
    (section,) = sections(RunSet.of(runs), ReportRequest(per_class=True, scores=("box_AP50",)))
    assert section.table is not None
    assert (section.table["class"], "box_AP" in section.table) == (["1", "3", "7"], False)
    with pytest.raises(UserError, match="--per-class: no run has this score by class"):
        sections(RunSet.of(runs), ReportRequest(per_class=True, scores=("top1",)))
