"""Whole runs of `transfer.pretrain` on embedded digits, and tasks on what they export."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from backbones.spec import resolve
from tests.processes import Command, run_by_ranks, wait_for
from tests.runs import assert_equal_runs, history, record, steps
from transfer.pretrain import main
from transfer.records.store import Store
from transfer.run import main as run
from transfer.runs import load

Captured = pytest.CaptureFixture[str]

TINY = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--size", "32", "--resize", "32"]
TINY += ["--subset", "40"]
QUICK = {
    "deit": [*TINY, "--epochs", "2", "--warmup-epochs", "0.5", "--batch-size", "32", "--lr", "3e-3"],
    "dino": [*TINY, "--local-size", "16", "--epochs", "1", "--batch-size", "32", "--out-dim", "256"],
}

HALF = ["--subset", "20", "--batch-size", "16"]
"""As many steps, of half the images."""


def words_of(recipe: str, out: Path, *more: str) -> list[str]:
    return [recipe, *QUICK[recipe], "--out", str(out / "runs"), "--export-dir", str(out / "weights"), *more]


@pytest.fixture(scope="module", params=QUICK)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A recipe, and the folder with its run and its weights."""
    out = tmp_path_factory.mktemp(request.param)
    assert main(words_of(request.param, out)) == 0
    return request.param, out


@pytest.mark.nightly
def test_dino_trains_on_a_folder_of_images_alone(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "pile" / "more").mkdir(parents=True)
    for number in range(16):
        image = Image.fromarray(np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8))
        image.save(tmp_path / "pile" / ("more" if number % 2 else "") / f"{number}.png")
    words = [word for word in QUICK["dino"] if word not in ("--subset", "40")]
    words += ["--dataset", str(tmp_path / "pile"), "--batch-size", "8", "--export-dir", str(tmp_path / "weights")]
    assert main(["dino", *words, "--out", str(tmp_path / "runs")]) == 0
    found = record(tmp_path / "runs")
    assert found.dataset["counts"] == {"train": {"images": 16, "classes": 0}, "ignored": 0}
    assert found.outcome["step"] == 2
    assert found.notes[:2] == [f"{tmp_path}/pile: read as format images", "pile: 16 images without labels"]
    assert main(["deit", *TINY, "--dataset", str(tmp_path / "pile"), "--out", str(tmp_path / "runs")]) == 1
    assert "pile: a classifier needs two classes; the images have 0" in capsys.readouterr().err


@pytest.mark.nightly
def test_looking_at_tokens_and_blocks_changes_no_training(trained: tuple[str, Path], tmp_path: Path) -> None:
    recipe, out = trained
    assert main(words_of(recipe, tmp_path, "--tokens-at", "1", "-1", "--watch", "blocks")) == 0
    (plain,), (watched,) = (list((root / "runs").iterdir()) for root in (out, tmp_path))
    assert watched.name == plain.name, "no part of the identity"
    lines = history(tmp_path / "runs")
    looks = [line for line in lines if "layers" in line]
    assert [line["epoch"] for line in looks] == {"deit": [1, 2], "dino": [1]}[recipe]
    assert lines[0]["max_attention_logit/block 1"] > 0
    added = {"layers", "attention", "stem"}
    others = [{name: line[name] for name in line.keys() - added if "/" not in name} for line in lines]
    assert [line for line in others if line.keys() != {"step", "epoch"}] == history(out / "runs")
    weights = [(root / "weights" / "tiny" / "model.safetensors").read_bytes() for root in (out, tmp_path)]
    assert weights[0] == weights[1]

    exported = ["--weights", str(tmp_path / "weights" / "tiny"), "--images", "64", "--out", str(tmp_path / "tokens")]
    assert run(["tokens", *TINY, *exported]) == 0
    after = record(tmp_path / "tokens").details
    for seen, told in zip(looks[-1]["layers"], after["layers"], strict=True):
        assert seen["norm"] == pytest.approx(told["norm"], rel=1e-5), "in the precision of scoring, too"


def test_the_export_says_where_it_comes_from_and_timm_loads_it(trained: tuple[str, Path]) -> None:
    recipe, out = trained
    found, weights = record(out / "runs"), out / "weights" / "tiny"
    about = json.loads((weights / "pretrain.json").read_text())
    assert (about["run"], about["identity"], about["recipe"]) == (found.run_id, found.run_key, recipe)
    model = timm.create_model(f"local-dir:{weights}", pretrained=True)
    assert model(torch.zeros(1, 3, 32, 32)).isfinite().all()
    assert resolve("tiny", weights=str(weights)).train_size == (32, 32)


def test_tasks_name_the_hash_of_the_run_that_made_their_weights(trained: tuple[str, Path], tmp_path: Path) -> None:
    recipe, out = trained
    weights = str(out / "weights" / "tiny")
    words = ["knn", "--backbone", "tiny", "--smoke", "--weights", weights, "--threads", "1", "--workers", "0"]
    assert run([*words, "--out", str(tmp_path)]) == 0
    frame = load(out / "runs", tmp_path).to_frame()
    names = ("recipe", "epochs", "seed")
    own, after = (frame[frame.recipe == name].iloc[0] for name in (recipe, "knn"))
    assert [own[name] for name in names] == [recipe, {"deit": 2, "dino": 1}[recipe], 0]
    assert [after[f"pretraining_{name}"] for name in names] == [own[name] for name in names]
    found = record(tmp_path)
    assert found.weights_id == record(out / "runs").export
    assert found.weights_id.startswith("sha256:")
    assert any("--smoke" in note for note in found.notes)


def test_weights_that_are_not_the_records_are_put_right(trained: tuple[str, Path]) -> None:
    recipe, out = trained
    weights = out / "weights" / "tiny" / "model.safetensors"
    before = weights.read_bytes()
    for spoil in (weights.unlink, lambda: weights.write_bytes(b"stale")):
        spoil()
        assert main(words_of(recipe, out)) == 0
        assert weights.read_bytes() == before
    assert weights.stat().st_mode & 0o777 == (weights.parent / "config.json").stat().st_mode & 0o777


def test_other_options_do_not_overwrite_weights(trained: tuple[str, Path], capfd: Captured) -> None:
    recipe, out = trained
    before = (out / "weights" / "tiny" / "model.safetensors").read_bytes()
    assert main(words_of(recipe, out, "--lr", "1e-5")) == 1
    assert "1e-05 here" in (said := capfd.readouterr().err)
    assert "--replace" in said
    assert (out / "weights" / "tiny" / "model.safetensors").read_bytes() == before


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", QUICK)
def test_a_killed_run_ends_as_an_undisturbed_one(recipe: str, tmp_path: Path) -> None:
    # below 20 steps: so small a training of deit would be found at chance, and leave no weights
    more = "--batch-size 16 --sam sam --grad-accum-steps 2 --stem conv --precision fp32 --tokens-at 1 -1"
    deit = "--subset 14 --mixup 0.8 --ema 0.99 --export ema"
    more = [*more.split(), *(deit if recipe == "deit" else "--subset 20").split()]
    assert main(words_of(recipe, tmp_path / "undisturbed", *more)) == 0
    words = [*words_of(recipe, tmp_path, *more), "--checkpoint-seconds", "0"]
    for kind in (signal.SIGKILL, signal.SIGTERM):
        process = Command("transfer.pretrain", words, tmp_path / "log")
        before = steps(tmp_path / "runs")
        wait_for(lambda: steps(tmp_path / "runs") >= before + 4 or process.poll() is not None)  # noqa: B023
        process.kill(kind)
        assert not list((tmp_path / "runs").glob("*/record.json")), "the run was too quick to be stopped"
    assert process.poll() == 143
    assert main(words_of(recipe, tmp_path, *more)) == 0
    assert_equal_runs(tmp_path / "runs", tmp_path / "undisturbed" / "runs")
    weights = [folder / "weights" / "tiny" / "model.safetensors" for folder in (tmp_path, tmp_path / "undisturbed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.nightly
def test_scores_of_the_last_epoch_stand_once_in_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are added behind the training, whose saved state does not know them; this one ended before its record."""
    words = words_of("deit", tmp_path, *HALF, "--validate-at", "1", "--checkpoint-seconds", "0")

    def scored() -> list[int]:
        return [line["epoch"] for line in history(tmp_path / "runs") if "top1" in line]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", lambda *_, **__: bytearray(2**62))
        assert main(words) == 1
    assert scored() == [1, 2]
    assert main(words) == 0
    assert scored() == [1, 2]
    assert "top1" in history(tmp_path / "runs")[-1]


@pytest.mark.nightly
def test_two_ranks_share_the_tokens_of_each_image(tmp_path: Path) -> None:
    """With mixing and stochastic depth as they are: both ranks see the same images and draw the same numbers."""
    more = [*HALF, "--attention", "relu", "--precision", "fp32", "--lr", "3e-4", "--drop-path", "0.1", "--stem", "conv"]
    assert main(words_of("deit", tmp_path / "one", *more)) == 0
    words = [*words_of("deit", tmp_path / "two", *more), "--sequence-parallel", "2"]
    run_by_ranks("transfer.pretrain", words, tmp_path / "log")
    one, two = (record(tmp_path / name / "runs") for name in ("one", "two"))
    assert one.run_key == two.run_key
    assert (two.environment["world_size"], two.environment["sequence_parallel"]) == (2, 2)
    losses = [[line["loss"] for line in history(tmp_path / name / "runs") if "loss" in line] for name in ("one", "two")]
    assert losses[0][:5] == pytest.approx(losses[1][:5], rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)  # the rounding of other sums grows
    # 32 pixels: 4 patches and the class token, whichever rank has them
    assert one.details["attention_lengths"] == two.details["attention_lengths"] == {"5": 2}
