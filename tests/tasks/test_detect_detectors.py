"""Shipped detectors that no command of `tests/gpu` runs train a step and score."""

from pathlib import Path

import pytest
import yaml

from tests.runs import record
from tests.tasks.test_detect import QUICK, WORDS
from transfer.core.settings import CONFIGS
from transfer.run import main

FEW_BOXES = {"test_cfg": {"rcnn": {"max_per_img": 5}}, "train_cfg": {"rcnn": {"sampler": {"num": 32}}}}
"""What is laid over each: with random weights all boxes that are allowed pass through the heads, and take long."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["mask_rcnn", "faster_rcnn", "mask_rcnn_vitdet"])
def test_shipped_detectors_train_and_score(name: str, tmp_path: Path) -> None:
    shipped = yaml.safe_load((CONFIGS / "detectors" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert not shipped["model"].keys() & FEW_BOXES.keys()
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(shipped | {"model": shipped["model"] | FEW_BOXES}), encoding="utf-8")
    assert main([*WORDS, *QUICK, "--subset", "2", "--detector", str(file), "--out", str(tmp_path / "runs")]) == 0
    assert record(tmp_path / "runs").details["detector"] == name
