"""Detection runs that need processes of their own: kill -9, and two ranks."""

import json
import signal
from pathlib import Path

import pytest

from tests.processes import Command, run_by_ranks, wait_for
from tests.runs import assert_equal_runs, history, outcomes, record, steps
from tests.tasks.test_detect import toy
from transfer.run import main

WORDS = ["detect", "--backbone", "tiny", "--smoke", "--threads", "1", "--subset", "8", "--size", "96", "128"]
WORDS += ["--batch-size", "2"]


def emptied(folder: Path) -> list[str]:
    """The words for eight drawn images of which four lost their objects, one to a region to be ignored."""
    data = toy(8)
    for split in (data.train, data.val):
        assert split is not None
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
    words = [*WORDS, "--epochs", "4", "--resize-mode", "jitter", "--flip", "0.5", "--drop-path", "0.1"]
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
    words = [*WORDS, "--epochs", "2", "--precision", "fp32", "--workers", "0", "--stem", "conv", "--sync-bn"]
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
    words = [*WORDS, "--epochs", "2", "--precision", "fp32", "--workers", "0", "--attention", "relu", "--window", "3"]
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
