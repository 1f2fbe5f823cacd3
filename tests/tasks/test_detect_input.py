"""What `transfer.run detect` is given: wrong words, data and files of detectors, and sets where masks are missing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backbones.data.spec import resolve_dataset
from backbones.engine.outcome import Outcome
from backbones.runtime.finite import NotFinite
from backbones.spec import resolve
from tasks import detect
from tasks.detect import TASK
from tasks.detection import mmlab
from tasks.detection.coco.flat_arrays import mask_library
from tasks.detection.coco.scores import evaluate, scores
from tasks.facts.detect import chosen_detector
from tests.support import context, with_flags
from tests.tasks.data.coco_tree import SIZE, SQUARE, changed, content, written
from tests.tasks.support import smoke_options
from tests.tasks.test_detect import QUICK, WORDS, toy
from transfer.run import main

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
    status = main(with_flags([*WORDS, *QUICK[2:], "--out", str(out / "runs")], words))
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
        (
            ["--backbone", "vit_tiny_patch16_224", "--weights", "random", "--relative"],
            "relative positions need an attention of this suite",
        ),
        (["--backbone", "test_resnet", "--weights", "random", "--window", "4"], "is no plain ViT: --window 0"),
        (["--global-blocks", "1"], "--global-blocks has no effect with --window 0"),
        (["--size", "128", "96"], "the limit of the shorter side comes first"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, err = failing(tmp_path, capfd, *words)
    assert said in err
    assert status == 2


def test_an_attention_that_cannot_have_relative_positions_is_named_before_anything_is_looked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its file is run, no weights are looked for, and `--dry-run` says it too."""
    (tmp_path / "mine.py").write_text("raise SystemError\ndef attend(q, k, v):\n    return v\n")
    monkeypatch.setattr("transfer.evaluation.inputs.find_weights", None)
    monkeypatch.setattr(mmlab, "load", None)
    words = ["--attention", f"{tmp_path}/mine.py:attend", "--relative", "--weights", "nowhere"]
    for more in ([], ["--dry-run"]):
        status, err = failing(tmp_path, capfd, *words, *more)
        assert "mine.py:attend cannot have relative positions: give --no-relative" in err
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
        ("mask_rcnn_light", "these are background in training", True),
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


@pytest.mark.parametrize(("x", "y"), [(99_000, 9), (-99_000, 99_000), (-9, -9)])
def test_polygons_outside_their_image_are_scored(tmp_path: Path, x: float, y: float) -> None:
    """A mask of which nothing is seen is never found; the others are."""
    given = content("val")
    given["annotations"][0]["segmentation"] = [[x, y, x + 4, y, x + 4, y + 4, x, y + 4]]
    written(tmp_path, val=given)
    (tmp_path / "tiny.yaml").write_text(f"format: coco\nroot: {tmp_path}\n")
    name = str(tmp_path / "tiny.yaml")
    data = TASK.open(resolve_dataset(name), smoke_options("detect"), root=None, subset=None, skip_unreadable=False)
    assert data.unmasked == 0
    square = mask_library().merge(mask_library().frPyObjects(SQUARE, SIZE["height"], SIZE["width"]))
    results = [
        {"image_id": image, "category_id": category, "score": 0.5, "segmentation": square, "bbox": [4, 4, 10, 10]}
        for image, category in ((201, 2), (202, 9), (203, 7))
    ]
    found = {kind: scores(evaluate(detect._truth(data, kind), results, kind)) for kind in ("bbox", "segm")}
    assert found["bbox"]["box_AR1"] == pytest.approx(1 / 3), "the box is whole, and the one of three that was found"
    assert found["segm"]["mask_AP"] == pytest.approx(2 / 3)


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


def test_an_image_whose_boxes_are_not_finite_ends_the_run_without_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch on the way only says so: what follows may be finite again."""
    written(tmp_path)
    (tmp_path / "tiny.yaml").write_text(f"format: coco\nroot: {tmp_path}\n")
    options = replace(smoke_options("detect", *QUICK[2:]), detector="faster_rcnn_light", epochs=2, validate_at=(1,))
    data = TASK.open(
        resolve_dataset(str(tmp_path / "tiny.yaml")), options, root=None, subset=None, skip_unreadable=False
    )
    assert data.val is not None
    name, here, validated = data.val.images[0].file_name, context(), []

    def broken(*_: Any, **__: Any) -> Any:
        raise NotFinite(name)

    def trained(learner: Any, loader: Any, options: Any, context: Any, validate: Any) -> Outcome:
        validated.append(validate(0))
        return Outcome(step=7)

    monkeypatch.setattr(detect, "detect", broken)
    monkeypatch.setattr(detect, "fit", trained)
    assert TASK.run(resolve("tiny"), data, options, here) == ({}, {})
    assert here.outcome.status == "nonfinite"
    assert name in here.outcome.reason
    assert validated == [{}]
    assert here.notes == [f"epoch 1 has no scores: what was found in {name} is not finite"]
