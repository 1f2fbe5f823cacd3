"""Whole runs of `transfer.run detect` on the drawn digits, in process."""

import json
from pathlib import Path

import pytest

from tasks.detect.task import RESULTS, TASK
from tests.runs import record
from tests.tasks.detect.coco.cases import official
from tests.tasks.support import smoke_options
from transfer.data.coco.dataset import CocoData
from transfer.data.spec import resolve_dataset
from transfer.run import main

WORDS = ["detect", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]
QUICK = ["--subset", "4", "--epochs", "1", "--batch-size", "2", "--size", "96", "128"]
LONGER = [*QUICK, "--epochs", "15", "--validate-at", "1"]
NUMBERS = ("AP", "AP50", "AP75", "APs", "APm", "AR1", "AR10", "AR100", "ARs", "ARm")  # nothing large is drawn


def toy(images: int = 4, *words: str) -> CocoData:
    """A few of the drawn images as the task opens them."""
    options = smoke_options("detect", *words)
    return TASK.open(resolve_dataset("toy_coco"), options, root=None, subset=images, drop_corrupt=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run."""
    out = tmp_path_factory.mktemp("runs")
    assert main([*WORDS, *LONGER, "--out", str(out)]) == 0
    return out


def test_the_record_says_what_the_run_was(run: Path) -> None:
    found = record(run)
    assert found.run_id.startswith("detect-toy_coco-tiny-")
    assert (found.primary, found.outcome["status"]) == ("box_AP", "completed")
    assert found.scores.keys() == {f"{kind}_{number}" for kind in ("box", "mask") for number in NUMBERS}
    assert found.metrics.keys() >= found.scores.keys()
    assert found.details["detector"] == "mask_rcnn_light"
    assert found.details["operators"] in ("bridge", "compiled")
    assert found.details["versions"].keys() == {"mmengine", "mmcv", "mmdet"}
    assert found.details["dropped"]["train"]["crowds"] == 12  # of the whole split
    assert found.dataset["counts"]["train"]["images"] == 4
    assert found.cost["gflops"] > 0
    assert found.cost["eval_seconds"] > 0


def test_the_detections_are_a_result_file_of_coco(run: Path) -> None:
    (file,) = run.glob(f"detect-*/{RESULTS}")
    data, results = toy(), json.loads(file.read_bytes())
    assert data.val is not None
    assert results
    assert {one["category_id"] for one in results} <= {*data.category_ids}
    expected = official(data.as_coco(data.val), results, "bbox") | official(data.as_coco(data.val), results, "segm")
    assert record(run).scores == pytest.approx(expected, abs=1e-9)
