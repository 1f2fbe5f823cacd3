"""Scores by class in the table of a report, from the outcomes that runs keep."""

from pathlib import Path

import numpy as np
import pytest

from tests.tasks.detect.coco.cases import official_by_class
from tests.transfer.comparison.test_paired_outcomes import coco_run, drawn_coco
from transfer.core.errors import UserError
from transfer.data.coco.scoring import COCO
from transfer.records.run_set import RunSet
from transfer.report.page.sections import ReportRequest, sections
from transfer.report.tables.text import note_texts

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


def test_other_scores_are_asked_for_by_name(tmp_path: Path) -> None:
    runs = [coco_run(tmp_path / "a", 0)]
    (section,) = sections(RunSet.of(runs), ReportRequest(per_class=True, scores=["box_AP50"]))
    assert section.table is not None
    assert (section.table["class"], "box_AP" in section.table) == (["1", "3", "7"], False)
    with pytest.raises(UserError, match="--per-class: no run has this score by class"):
        sections(RunSet.of(runs), ReportRequest(per_class=True, scores=["top1"]))
