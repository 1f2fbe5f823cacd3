"""Every shipped detector but the light ones trains a step and scores."""

from pathlib import Path

import pytest

from tests.runs import record
from tests.tasks.test_detect import QUICK, WORDS
from transfer.run import main


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask_rcnn", "faster_rcnn", "cascade_mask_rcnn", "retinanet", "mask_rcnn_vitdet"])
def test_shipped_detectors_train_and_score(name: str, tmp_path: Path) -> None:
    assert main([*WORDS, *QUICK, "--subset", "2", "--detector", name, "--out", str(tmp_path)]) == 0
    assert record(tmp_path).details["detector"] == name
