"""Runs of `transfer.run detect` in process: on the drawn digits, and what wrong words, data and files give."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from backbones.spec import resolve
from tasks.detect import mmlab, training
from tasks.detect.task import DETECTIONS, TASK
from tests.interactions.generator import with_words
from tests.processes import Command, run_by_ranks, wait_for
from tests.runs import assert_equal_runs, history, outcomes, record, steps
from tests.support import context
from tests.tasks.detect.coco.cases import official
from tests.tasks.support import smoke_options
from tests.transfer.data.coco.coco_tree import changed, content, written
from transfer.core.settings import CONFIGS
from transfer.data.coco.dataset import CocoData
from transfer.data.spec import resolve_dataset
from transfer.engine.extract import NotFinite
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
    assert (found.primary, found.outcome["status"]) == ("box_AP", "completed")
    assert found.scores.keys() == {f"{kind}_{number}" for kind in ("box", "mask") for number in NUMBERS}
    assert found.details["detector"] == "mask_rcnn_light"
    assert found.details["operators"] in ("bridge", "compiled")
    assert found.details["versions"].keys() == {"mmengine", "mmcv", "mmdet"}
    assert found.details["dropped"]["train"]["crowds"] == 12  # of the whole split
    assert found.dataset["counts"]["train"]["images"] == 4
    assert found.cost["gflops"] > 0


def test_the_detections_are_a_result_file_of_coco(run: Path) -> None:
    (file,) = run.glob(f"detect-*/{DETECTIONS}")
    data, results = toy(), json.loads(file.read_bytes())
    assert results
    assert {one["category_id"] for one in results} <= {*data.category_ids}
    expected = official(data.as_coco(data.val), results, "bbox") | official(data.as_coco(data.val), results, "segm")
    assert record(run).scores == pytest.approx(expected, abs=1e-9)


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


def failing(out: Path, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit status and what was said, in a command that makes no record."""
    status = main(with_words([*WORDS, *QUICK[2:], "--out", str(out / "runs")], words))
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert not list(out.glob("runs/*/record.json"))
    return status, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pyramid", "taps"], "--pyramid taps takes four blocks, tiny has 2: --pyramid simple"),
        (["--batch-size", "500"], "--batch-size 500: toy_coco has 90 training images with objects"),
        (["--size", "96", "64"], "--size 96 64: the limit of the shorter side comes first"),
        (["--drop-path", "1"], "--drop-path 1.0: must be between 0 and 0.99"),
        (["--out-indices", "0", "1", "2", "3"], "--out-indices has no effect"),
        (["--pyramid", "taps", "--out-indices", "0", "1", "1", "2"], "set four different blocks"),
        (["--epochs", "3", "--validate-at", "1", "4"], "epochs count from 1 to 3"),
        (["--depth", "4", "--pyramid", "taps", "--out-indices", "0", "1", "2", "7"], "block 7 does not exist"),
        (["--patch", "32"], "maps of stride 32: pyramids are made from patches of 4, 8 and 16 pixels"),
        (["--backbone", "test_resnet", "--weights", "random", "--window", "4"], "is not a plain ViT; use --window 0"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, err = failing(tmp_path, capfd, *words)
    assert said in err
    assert status == 2


def test_an_attention_that_cannot_have_relative_positions_is_named_first(tmp_path, capfd, monkeypatch) -> None:
    """Not even its file is run, no weights are looked for, and `--dry-run` says it too."""
    (tmp_path / "mine.py").write_text("raise SystemError\ndef attend(q, k, v):\n    return v\n")
    monkeypatch.setattr("transfer.evaluation.preflight.find_weights", None)
    monkeypatch.setattr(mmlab, "load", None)
    words = ["--attention", f"{tmp_path}/mine.py:attend", "--relative", "--weights", "nowhere"]
    for more in ([], ["--dry-run"]):
        status, err = failing(tmp_path, capfd, *words, *more)
        assert "mine.py:attend cannot have relative positions: use --no-relative" in err
        assert status == 2


def tiny_set(folder: Path, options: Any, **given: Any) -> CocoData:
    """The small set, written and opened."""
    written(folder, **given)
    (folder / "tiny.yaml").write_text(f"format: coco\nroot: {folder}\n")
    spec = resolve_dataset(str(folder / "tiny.yaml"))
    return TASK.open(spec, options, root=None, subset=None, drop_corrupt=False)


def boxes_only(split: str = "train") -> dict[str, Any]:
    given = content(split)
    for one in given["annotations"]:
        del one["segmentation"]
    return given


@pytest.mark.parametrize(
    ("train", "options", "words", "said"),
    [
        (changed("images", 0, width=41), "", [], "images do not have the size (width x height) that it states"),
        (None, "val_annotations: null", [], "tiny: detect needs a val split"),
        (boxes_only(), "", ["--detector", "mask_rcnn"], "tiny: 6 of 6 objects have no mask, but mask_rcnn needs them"),
    ],
    ids=["size", "no-val", "no-masks"],
)
def test_wrong_data(train, options, words, said, tmp_path, capfd) -> None:
    written(tmp_path, train=train, val=boxes_only("val") if "--detector" in words else None)
    (tmp_path / "tiny.yaml").write_text(f"format: coco\nroot: {tmp_path}\n{options}\n")
    status, err = failing(tmp_path, capfd, "--dataset", str(tmp_path / "tiny.yaml"), *words)
    assert said in err
    assert status in (1, 2)


def test_a_set_where_some_masks_are_missing_says_so(tmp_path: Path) -> None:
    options = replace(smoke_options("detect", *QUICK[2:]), detector=None, epochs=1)
    data = tiny_set(tmp_path, options, train=changed("annotations", 0, segmentation=...))
    assert data.unmasked == 1
    for detector, effect, found in (
        (None, "faster_rcnn, and no scores of masks", False),
        ("mask_rcnn_light", "these are background in training", True),
    ):
        here = context(tmp_path / str(detector))
        (tmp_path / str(detector)).mkdir()
        scores, _ = TASK.execute(resolve("tiny"), data, replace(options, detector=detector), here)
        assert ("mask_AP" in scores) == found
        unused = "1 of 4 training images have no objects and are not trained on"
        assert here.notes == [f"tiny: 1 of 6 objects have no mask: {effect}", unused]
        batches = divmod(3, options.batch_size)
        assert here.details["epoch"] == {"steps": batches[0], "images": 3, "left_out": batches[1]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: x\n", "`masks` is missing"),
        ("base: x\nmasks: 1\n", "`masks` is 1; it must be of type bool"),
        ("base: x\nmasks: true\nmodle: {}\n", "unknown key 'modle'; did you mean 'model'"),
        ("base: faster-rcnn_r50_fpm\nmasks: false", "no base 'faster-rcnn_r50_fpm'; did you mean 'faster-rcnn_r"),
        ("base: mask-rcnn_r50_fpn\nmasks: false", "it predicts masks, so its file must say `masks: true`"),
        ("base: faster-rcnn_r50-caffe-c4\nmasks: false", "is not a class detector with a feature pyramid"),
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
    assert status == (1 if "no base" in said else 2)


def test_epochs_of_validations_do_not_count_where_a_trained_detector_is_scored_on_another_dataset() -> None:
    assert not replace(smoke_options("detect", "--epochs", "2", "--validate-at", "2"), epochs=0).epochs


def test_an_image_whose_boxes_are_not_finite_ends_the_run_without_scores(tmp_path, monkeypatch) -> None:
    """An epoch on the way only says so: what follows may be finite again."""
    options = replace(smoke_options("detect", *QUICK[2:]), detector="faster_rcnn_light", epochs=2, validate_at=(1,))
    data = tiny_set(tmp_path, options)
    name, here = data.val.images[0].file_name, context(tmp_path)

    def broken(*_: Any, **__: Any) -> Any:
        raise NotFinite(name)

    monkeypatch.setattr(training, "detect", broken)
    assert TASK.execute(resolve("tiny"), data, options, here) == ({}, {})
    assert here.outcome.status == "nonfinite"
    assert name in here.outcome.reason
    assert f"epoch 1 has no scores: {name}" in here.notes


SMALL = [*WORDS[:-2], "--subset", "8", "--size", "96", "128", "--batch-size", "2"]


def emptied(folder: Path) -> list[str]:
    """The words for eight drawn images of which four lost their objects, one to a region to be ignored."""
    data = toy(8)
    for split in (data.train, data.val):
        content = data.as_coco(split)
        if split is data.train:
            *lost, region = (image.id for image in split.images[:4])
            kept = [one for one in content["annotations"] if one["image_id"] not in lost]
            content["annotations"] = [{**one, "ignore": int(one["image_id"] == region)} for one in kept]
        (folder / f"{split.name}.json").write_text(json.dumps(content), encoding="utf-8")
    keys = ["format: coco", f"root: {data.root}", "ignore_flag: region"]
    keys += [f"{name}_annotations: {folder}/{name}.json" for name in ("train", "val")]
    (folder / "emptied.yaml").write_text("\n".join(keys))
    return ["--dataset", str(folder / "emptied.yaml"), "--empty-images", "keep"]


@pytest.mark.nightly
def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Jitter, flips, stochastic depth and the sampling of regions draw the same numbers again."""
    words = [*SMALL, "--epochs", "4", "--resize-mode", "jitter", "--flip", "0.5", "--drop-path", "0.1"]
    words += emptied(tmp_path)
    out = ["--out", str(tmp_path / "killed")]
    process = Command("transfer.run", [*words, "--workers", "1", "--checkpoint-seconds", "0", *out], tmp_path / "log")
    wait_for(lambda: steps(tmp_path / "killed") >= 5 or process.poll() is not None)
    process.kill(signal.SIGKILL)
    assert not list((tmp_path / "killed").glob("*/record.json")), "the run was too quick to be killed"
    assert main([*words, "--workers", "0", *out]) == 0
    assert main([*words, "--workers", "0", "--out", str(tmp_path / "undisturbed")]) == 0
    assert_equal_runs(tmp_path / "killed", tmp_path / "undisturbed")
    detections = [next((tmp_path / name).glob("*/detections.json")) for name in ("killed", "undisturbed")]
    assert detections[0].read_bytes() == detections[1].read_bytes()
    found = record(tmp_path / "killed")
    assert (found.details["without_objects"], found.options["ignore_iof"]) == (4, 0.7)


@pytest.mark.nightly
@pytest.mark.parametrize("empty", [False, True])
def test_two_ranks_follow_one_process(tmp_path: Path, empty: bool) -> None:
    words = [*SMALL, "--epochs", "2", "--precision", "fp32", "--workers", "0", "--stem", "conv", "--sync-bn"]
    words += ["--no-norm-eval", *(emptied(tmp_path) if empty else [])]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    printed = run_by_ranks("transfer.run", [*words, "--out", str(tmp_path / "two")], tmp_path / "log")
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    assert one.run_key == two.run_key
    assert two.environment["world_size"] == 2
    assert outcomes(tmp_path / "one")["sample"].tolist() == outcomes(tmp_path / "two")["sample"].tolist()
    # mmdetection samples regions, and divides by their number, on each rank by itself: alike, not equal
    first, second = (history(tmp_path / name)[:3] for name in ("one", "two"))
    for mine, theirs in zip(first, second, strict=True):
        assert mine["lr"] == theirs["lr"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.3 if empty else 0.05)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.6 if empty else 0.3)
    assert printed.count("seed |") == 1  # the table, by one rank


@pytest.mark.nightly
def test_two_ranks_share_the_tokens_of_global_blocks(tmp_path: Path) -> None:
    """Both see the same images, and draw the same regions: losses are those of one process."""
    words = [*SMALL, "--epochs", "2", "--precision", "fp32", "--workers", "0", "--attention", "relu", "--window", "3"]
    words += ["--global-blocks", "1", "--drop-path", "0.1", "--grad-checkpointing"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    words += ["--sequence-parallel", "2", "--out", str(tmp_path / "two")]
    run_by_ranks("transfer.run", words, tmp_path / "log")
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    assert one.run_key == two.run_key
    assert one.details["attention_lengths"] == two.details["attention_lengths"] == {"9": 1, "6": 1, "48": 1}
    first, second = (history(tmp_path / name) for name in ("one", "two"))
    for mine, theirs in zip(first[:4], second[:4], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
