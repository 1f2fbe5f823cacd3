"""Whole runs of `transfer.run detect` on the drawn digits, in process."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from backbones.data.spec import resolve_dataset
from backbones.settings import CONFIGS
from backbones.spec import resolve
from tasks import detect
from tasks.data.coco import CocoData
from tasks.detect import RESULTS, TASK, chosen_detector
from tests.support import context
from tests.tasks.data.coco_tree import changed, content, written
from tests.tasks.support import smoke_options
from tests.transfer.test_run import record
from transfer.results import Record
from transfer.run import main

WORDS = ["detect", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]
QUICK = ["--subset", "4", "--epochs", "1", "--batch", "2", "--size", "96", "128"]
LONGER = [*QUICK, "--epochs", "15", "--validate-at", "1"]
NUMBERS = ("AP", "AP50", "AP75", "APs", "APm", "AR1", "AR10", "AR100", "ARs", "ARm")  # nothing large is drawn


def toy(images: int = 4, *words: str) -> CocoData:
    """A few of the drawn images as the task opens them."""
    options = smoke_options("detect", *words)
    return TASK.open(resolve_dataset("toy_coco"), options, root=None, subset=images, skip_unreadable=False)


def history(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in next(out.glob("*/history.jsonl")).read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run, with pictures."""
    out = tmp_path_factory.mktemp("runs")
    assert main([*WORDS, *LONGER, "--draw", "3", "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_the_smoke_layer_as_it_is_learns(tmp_path: Path) -> None:
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    found = record(tmp_path)
    assert found.scores["box_AP50"] > 0.15
    assert found.scores["mask_AP50"] > 0.15
    assert found.smoke


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


def test_losses_and_validations_are_in_the_history(run: Path) -> None:
    lines = history(run)
    steps = [line for line in lines if "loss" in line]
    parts = {"loss_rpn_cls", "loss_rpn_bbox", "loss_cls", "loss_bbox", "loss_mask"}
    for line in steps:
        assert parts <= line.keys()
        assert line["loss"] == pytest.approx(sum(line[name] for name in parts), rel=1e-5)
    (validation,) = [line for line in lines if "box_AP" in line]
    assert validation["epoch"] == 1


def test_outcomes_are_enough_for_the_scores_to_the_bit(run: Path) -> None:
    with np.load(next(run.glob("*/outcomes.npz"))) as file:
        outcomes = dict(file)
    assert TASK.rescore(outcomes) == record(run).scores
    assert len(outcomes["sample"]) == len(outcomes["cluster"]) == 4


def test_the_detections_are_a_result_file_of_coco(run: Path) -> None:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    (folder,) = run.glob("detect-*")
    data = toy()
    truth = COCO()
    assert data.val is not None
    truth.dataset = data.as_coco(data.val)
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        found = truth.loadRes(str(folder / RESULTS))
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    assert {one["category_id"] for one in found.dataset["annotations"]} <= {*data.category_ids}
    assert found.dataset["annotations"]
    assert evaluation.stats[0] == pytest.approx(record(run).scores["box_AP"], abs=1e-9)
    assert evaluation.stats[8] == pytest.approx(record(run).scores["box_AR100"], abs=1e-9)


def test_pictures_are_made_from_a_record_too(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder,) = run.glob("detect-*")
    assert len(list((folder / "pictures").glob("*.png"))) == 3
    assert main([*WORDS, *LONGER, "--draw", "4", "--out", str(run)]) == 0
    assert "has a record, reused" in capfd.readouterr().err
    assert len(list((folder / "pictures").glob("*.png"))) == 4
    data = toy()
    assert data.val is not None
    for place in range(4):
        with Image.open(folder / "pictures" / f"{Path(data.val.path(place)).stem}.png") as image:
            assert image.size == (data.val.images[place].width, data.val.images[place].height)


@pytest.mark.parametrize(
    "words",
    [
        ["--stem", "conv", "--attention", "relu", "--length", "train", "--window", "4", "--global-blocks", "1"],
        ["--pyramid", "taps", "--depth", "4", "--attention", "relu"],
        ["--detector", "faster_rcnn_light", "--relative", "--window", "3", "--global-blocks", "1", "--checkpoint"],
        ["--view", "jitter", "--accumulate", "2", "--norm-eval", "--stem", "conv"],
    ],
    ids=["stem-relu-window", "taps-relu", "boxes-relative", "jitter"],
)
def test_parts_and_options_train_and_score(words: list[str], tmp_path: Path) -> None:
    assert main([*WORDS, *QUICK, *words, "--out", str(tmp_path)]) == 0
    found = record(tmp_path)
    assert np.isfinite([line["loss"] for line in history(tmp_path) if "loss" in line]).all()
    assert ("mask_AP" in found.scores) == ("faster_rcnn_light" not in words)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask_rcnn", "faster_rcnn", "cascade_mask_rcnn", "retinanet"])
def test_shipped_detectors_train_and_score(name: str, tmp_path: Path) -> None:
    assert main([*WORDS, *QUICK, "--subset", "2", "--detector", name, "--out", str(tmp_path)]) == 0
    assert record(tmp_path).details["detector"] == name


def test_a_model_with_stages_goes_through_the_pyramid_of_mmdetection(tmp_path: Path) -> None:
    words = [*WORDS, *QUICK, "--backbone", "test_resnet", "--weights", "random", "--out", str(tmp_path)]
    assert main(words) == 0
    assert "box_AP" in record(tmp_path).scores


HEADLESS = """
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.num_features = nn.Linear(3, 8), 8
    def forward(self, images):
        return self.body(images.mean((2, 3)))
"""


def failing(out: Path, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit status and what was said, in a command that makes no record."""
    status = main([*WORDS, *QUICK[2:], "--out", str(out / "runs"), *words])
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert not list(out.glob("runs/*/record.json"))
    return status, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--detector", "mask_rcn"], "unknown detector 'mask_rcn'; did you mean 'mask_rcnn'"),
        (["--pyramid", "taps"], "--pyramid taps takes four blocks, tiny has 2: --pyramid simple"),
        (["--pyramid", "taps", "--depth", "4", "--taps", "0", "1", "2", "9"], "taps: there is no block 9"),
        (["--pyramid", "taps", "--depth", "4", "--taps", "0", "1", "3", "-1"], "four different blocks are needed"),
        (["--window", "3"], "--window 3 has no effect: all 2 blocks are global"),
        (["--sync-bn", "--norm-eval"], "--sync-bn has no effect"),
        (["--batch", "500"], "--batch 500: toy_coco has 90 training images with objects"),
        (["--backbone", "test_resnet", "--weights", "random", "--checkpoint"], "is no plain ViT"),
        (
            ["--backbone", "test_resnet", "--weights", "random", "--pyramid", "taps", "--taps", "0", "1", "2", "3"],
            "test_resnet is no plain ViT, whose blocks could be named",
        ),
        (["--patch", "32"], "maps of stride 32: pyramids are made from patches of 4, 8 and 16 pixels"),
        (["--window", "4", "--global-blocks", "5"], "global blocks: there is no block 5"),
        (["--relative", "--attention", "relu"], "relative positions need the attention `softmax`"),
        (["--backbone", "test_resnet", "--weights", "random", "--window", "4"], "is no plain ViT: --window 0"),
        (["--global-blocks", "1"], "--global-blocks has no effect with --window 0"),
        (["--size", "128", "96"], "the limit of the shorter side comes first"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, err = failing(tmp_path, capfd, *words)
    assert said in err
    assert status == 2


def test_a_backbone_without_maps_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(HEADLESS)
    status, err = failing(tmp_path, capfd, "--backbone", f"{tmp_path}/mine.py:Model")
    assert "gives pooled features only, no maps" in err
    assert status == 2


def boxes_only(split: str = "train") -> dict[str, Any]:
    given = content(split)
    for one in given["annotations"]:
        del one["segmentation"]
    return given


@pytest.mark.parametrize(
    ("train", "options", "words", "said"),
    [
        ("{", "", [], "instances_train2017.json: not JSON"),
        (changed("annotations", 0, category_id=77), "", [], "an `category_id` that `categories` does not list: 77"),
        (changed("images", 0, width=41), "", [], "images are of another size (width x height) than it states"),
        (None, "val_annotations: null", [], "tiny: there is no val split, and detect needs one"),
        (boxes_only(), "", ["--detector", "mask_rcnn"], "tiny: 6 of 6 objects have no mask, but mask_rcnn needs them"),
    ],
    ids=["broken", "category", "size", "no-val", "no-masks"],
)
def test_wrong_data(
    train: Any, options: str, words: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, train=train, val=boxes_only("val") if "--detector" in words else None)
    (tmp_path / "tiny.yaml").write_text(f"format: coco\nroot: {tmp_path}\n{options}\n")
    status, err = failing(tmp_path, capfd, "--dataset", str(tmp_path / "tiny.yaml"), *words)
    assert said in err
    assert status in (1, 2)


def test_a_set_without_masks_gets_boxes(tmp_path: Path) -> None:
    written(tmp_path, train=boxes_only(), val=boxes_only("val"))
    (tmp_path / "tiny.yaml").write_text(f"format: coco\nroot: {tmp_path}\n")
    options = smoke_options("detect", "--dataset", str(tmp_path / "tiny.yaml"))
    data = TASK.open(
        resolve_dataset(str(tmp_path / "tiny.yaml")), options, root=None, subset=None, skip_unreadable=False
    )
    assert chosen_detector(replace(options, detector=None), data).name == "faster_rcnn"
    assert chosen_detector(replace(options, detector=None), toy()).name == "mask_rcnn"


def test_a_set_where_some_masks_are_missing_says_so(tmp_path: Path) -> None:
    given = changed("annotations", 0, segmentation=...)
    written(tmp_path, train=given)
    (tmp_path / "tiny.yaml").write_text(f"format: coco\nroot: {tmp_path}\n")
    options = replace(smoke_options("detect", *QUICK[2:]), detector=None, epochs=1)
    name = str(tmp_path / "tiny.yaml")
    data = TASK.open(resolve_dataset(name), options, root=None, subset=None, skip_unreadable=False)
    assert data.unmasked == 1
    for detector, effect, found in (
        (None, "faster_rcnn, and no scores of masks", False),
        ("mask_rcnn_light", "these are ignored", True),
    ):
        here = context(tmp_path / str(detector))
        (tmp_path / str(detector)).mkdir()
        scores, _ = TASK.run(resolve("tiny"), data, replace(options, detector=detector), here)
        assert ("mask_AP" in scores) == found
        assert here.notes == [f"tiny: 1 of 6 objects have no mask: {effect}"]


def test_an_object_without_mask_counts_neither_way_among_masks(tmp_path: Path) -> None:
    given = content("val")
    del given["annotations"][0]["segmentation"]
    written(tmp_path, val=given)
    (tmp_path / "tiny.yaml").write_text(f"format: coco\nroot: {tmp_path}\n")
    name = str(tmp_path / "tiny.yaml")
    data = TASK.open(resolve_dataset(name), smoke_options("detect"), root=None, subset=None, skip_unreadable=False)
    crowds = {
        kind: sum(one["iscrowd"] for one in detect._truth(data, kind)["annotations"]) for kind in ("bbox", "segm")
    }
    assert crowds == {"bbox": 1, "segm": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: mask-rcnn_r50_fpn\nmasks: false", "it predicts masks, so its file must say `masks: true`"),
        ("base: faster-rcnn_r50_fpn\nmasks: true", "it predicts no masks, so its file must say `masks: false`"),
        ("base: faster-rcnn_r50-caffe-c4\nmasks: false", "is no detector of classes with a feature pyramid"),
        ("base: ssd300\nmasks: false", "is no detector of classes with a feature pyramid"),
        ("base: rpn_r50_fpn\nmasks: false", "is no detector of classes with a feature pyramid"),
        ("base: faster-rcnn_r50_fpn\nmasks: false\nmodel: {roi_head: null}", "without `roi_head` it finds no classes"),
        ("base: faster-rcnn_r50_fpn\nmasks: false\nmodel: {neck: hello}", "with a feature pyramid"),
        ("base: faster-rcnn_r50_fpn\nmasks: false\nmodel: {neck: {num_outs: 3}}", "mmdetection cannot build it"),
        (
            "base: faster-rcnn_r50_fpn\nmasks: false\n"
            "model: {rpn_head: {anchor_generator: {strides: [2, 4, 8, 16, 32]}}}",
            "anchors of strides [2, 4, 8, 16, 32], but the levels have strides",
        ),
    ],
)
def test_wrong_detector_files(text: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    pyramid = ["--pyramid", "taps", "--depth", "4"] if "num_outs" in text else []
    status, err = failing(tmp_path, capfd, "--detector", str(tmp_path / "mine.yaml"), *pyramid)
    assert said in err
    assert status == 2


def test_a_model_that_takes_one_size_only_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, err = failing(tmp_path, capfd, "--backbone", "resmlp_12_224", "--weights", "random")
    assert "the backbone cannot take images of other sizes" in err
    assert status == 2


def test_a_model_of_two_strides_gives_its_last_map(tmp_path: Path) -> None:
    words = [*WORDS, *QUICK, "--subset", "2", "--backbone", "volo_d1", "--weights", "random"]
    assert main([*words, "--out", str(tmp_path)]) == 0


def test_pictures_need_the_detections(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, *QUICK, "--subset", "2", "--out", str(tmp_path)]
    assert main(words) == 0
    next(tmp_path.glob("*/detections.json")).unlink()
    assert main([*words, "--draw", "1"]) == 1
    assert "detections.json is gone" in capfd.readouterr().err


def test_a_training_that_breaks_down_is_recorded_without_scores(tmp_path: Path) -> None:
    words = [*QUICK, "--epochs", "20", "--lr", "1e9", "--warmup-epochs", "0", "--draw", "2"]
    assert main([*WORDS, *words, "--out", str(tmp_path)]) == 3
    found = record(tmp_path)
    assert found.outcome["status"] == "nonfinite"
    assert found.scores == {}
    assert not list(tmp_path.glob("*/detections.json"))
    assert not list(tmp_path.glob("*/pictures"))


def test_the_content_of_a_detector_file_belongs_to_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = (CONFIGS / "detectors" / "faster_rcnn_light.yaml").read_text()
    for text in (shipped, shipped.replace("num: 32", "num: 16")):
        Path("mine.yaml").write_text(text)
        assert main([*WORDS, *QUICK, "--subset", "2", "--detector", "mine.yaml", "--out", "runs"]) == 0
    found = [Record.read(path) for path in Path("runs").glob("*/record.json")]
    assert len(found) == 2
    assert {one.options["detector"] for one in found} == {str(tmp_path / "mine.yaml")}
