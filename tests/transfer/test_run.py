"""Whole runs of `transfer.run reid` on the embedded people, in process."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from backbones.backbone import create
from backbones.weights.export import export
from tests.documents import files_in
from tests.runs import history, record
from transfer.records.record import Record
from transfer.report.__main__ import main as report
from transfer.run import main
from transfer.verify.__main__ import main as verify

Captured = pytest.CaptureFixture[str]

TINY = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]
TINY += ["--lr", "3e-3", "--optimizer", "adamw"]
QUICK = [*TINY, "--epochs", "2", "--warmup-epochs", "0"]


def test_the_record_has_the_size_that_images_were_resized_to(tmp_path: Path) -> None:
    words = ["knn", "--backbone", "tiny", "--weights", "random", "--dataset", "toy_digits", "--subset", "4"]
    out = ["--out", str(tmp_path), "--threads", "1", "--workers", "0"]
    assert main([*words, "--size", "32", *out]) == 0
    kept = record(tmp_path)
    assert kept.options["resize"] == 36
    prepared = {"size": [32, 32], "resize": 36, "crop": "center", "interpolation": "bicubic", "antialias": True}
    assert kept.details["preprocessing"] == prepared | {"image_ops": "pil", "channels": "RGB"}
    assert main(["knn", "--config", str(next(tmp_path.glob("*/options.yaml"))), *out]) == 0
    assert len([*tmp_path.glob("*/record.json")]) == 1
    assert verify([str(tmp_path)]) == 0


def test_seeds_make_a_table_and_records_that_say_what_the_runs_were(tmp_path: Path, capsys: Captured) -> None:
    assert main([*QUICK, "--stem", "conv", "--out", str(tmp_path), "--seeds", "0", "1"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"\| seed \| +mAP \| +rank1 \| rank5 \| rank10 \| mINP \|", table), "in 100 columns"
    assert len(re.findall(r"\d\.\d \[\d+\.\d, \d+\.\d\] \|.*\| *[\w-]*[0-9a-f]{12} \|", table)) == 2, "intervals"
    found, other = sorted((Record.read(path) for path in tmp_path.glob("*/record.json")), key=lambda run: run.seed)
    assert (found.seed, other.seed) == (0, 1)
    assert found.config_digest == other.config_digest
    assert found.scores != other.scores
    assert found.run_id.startswith("reid-toy_market-tiny-")
    assert found.run_key.startswith(found.run_id[-12:])
    assert (found.smoke, found.weights_id, found.status) == (True, "random", "not_judged")
    assert found.reason == "10 steps, at least 20 are needed; train longer, or with smaller batches"
    assert found.outcome["largest_lr"] == max(line["lr"] for line in history(tmp_path) if "lr" in line)
    assert found.backbone["stem"] == "conv"
    assert found.dataset["counts"]["train"]["identities"] == 48
    assert found.cost["gflops"] > 0
    assert (found.environment["threads"], found.environment["threads_why"]) == (1, "--threads")
    assert report([str(tmp_path)]) == 1, "smoke runs stay out of reports"
    assert report([str(tmp_path), "--smoke", "--dirty"]) == 0
    assert "(smoke" in capsys.readouterr().out


def test_a_breakdown_is_recorded_and_exits_with_3(tmp_path: Path, capsys: Captured) -> None:
    words = [*TINY, "--optimizer", "sgd", "--lr", "1e6", "--epochs", "20", "--warmup-epochs", "2"]
    words += ["--out", str(tmp_path)]
    for _ in range(2):
        assert main(words) == 3
        out = capsys.readouterr().out
        found = record(tmp_path)
        assert found.outcome["status"] in ("nonfinite", "diverged", "collapsed")
        assert found.outcome["status"] in out
        assert found.scores == {}


@pytest.mark.nightly
def test_a_run_is_repeated_from_its_options_in_another_place(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there" / "toy_market").mkdir(parents=True)  # of no concern: a name stays a name
    (tmp_path / "here" / "my_stem.py").write_text(files_in("docs/adding-a-part.md")["my_stem.py"])
    (tmp_path / "here" / "mine.yaml").write_text("stem: my_stem.py:MyStem\n")
    monkeypatch.chdir(tmp_path / "there")
    assert main([*QUICK, "--config", "../here/mine.yaml", "--epochs", "1", "--out", "runs"]) == 0
    (folder,) = (tmp_path / "there" / "runs").iterdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["reid", "--config", str(folder / "options.yaml"), "--out", "../there/runs"]) == 0
    assert len(list((tmp_path / "there" / "runs").iterdir())) == 1


def test_folders_and_weights_of_a_name_are_those_of_the_options_in_another_place(
    tmp_path: Path, monkeypatch: Any
) -> None:
    words = ["--out", str(tmp_path / "runs"), "--threads", "1", "--workers", "0"]
    for number, place in enumerate(("train/a", "train/b", "val/a", "val/b", "../there", "../random")):
        (tmp_path / "photos" / place).mkdir(parents=True)
        pixels = np.random.default_rng(number).integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / place / f"{number}.png")
    for folder in ("mine", "weights/vit_tiny"):
        export(create("vit_tiny", weights="random", img_size=32), tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    for weights in (["--weights", "mine"], ["--weights", "random"], []):
        named = ["--backbone", "vit_tiny", *weights, "--dataset", "photos", "--size", "32"]
        assert main(["knn", *named, "--resize", "32", *words]) == 0
    monkeypatch.chdir(tmp_path / "there")
    for options in tmp_path.glob("runs/*/options.yaml"):
        assert main(["knn", "--config", str(options), *words]) == 0
    made = [Record.read(path).weights_id for path in tmp_path.glob("runs/*/record.json")]
    assert sorted(weights_id.partition(":")[0] for weights_id in made) == ["random", "sha256", "sha256"]
