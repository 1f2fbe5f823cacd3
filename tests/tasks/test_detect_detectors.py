"""Every shipped detector but the light ones trains a step and scores."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.runs import record
from tests.tasks.test_detect import QUICK, WORDS
from transfer.core.settings import CONFIGS
from transfer.run import main

FEW_FOUND = {"test_cfg": {"rcnn": {"max_per_img": 5}}}
FEW_BOXES = {**FEW_FOUND, "train_cfg": {"rcnn": {"sampler": {"num": 32}}}}
FEWER: dict[str, dict[str, Any]] = {
    "mask_rcnn": FEW_BOXES,
    "faster_rcnn": FEW_BOXES,
    "cascade_mask_rcnn": FEW_FOUND,
    "mask_rcnn_vitdet": FEW_BOXES,
    "retinanet": {"test_cfg": {"max_per_img": 5}},
}
"""What is laid over each: with random weights all boxes that are allowed pass through the heads, and take long."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", FEWER)
def test_shipped_detectors_train_and_score(name: str, tmp_path: Path) -> None:
    shipped = yaml.safe_load((CONFIGS / "detectors" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert not shipped["model"].keys() & FEWER[name].keys()
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(shipped | {"model": shipped["model"] | FEWER[name]}), encoding="utf-8")
    assert main([*WORDS, *QUICK, "--subset", "2", "--detector", str(file), "--out", str(tmp_path / "runs")]) == 0
    assert record(tmp_path / "runs").details["detector"] == name
