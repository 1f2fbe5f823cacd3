"""Defaults that depend on epochs, sizes, weights and data: fitted and reported, or rejected where the user set them."""

import json
from pathlib import Path
from typing import Any

import pytest

from backbones.backbone import create
from backbones.weights.export import export
from tests.faults.data import draw
from tests.support import command
from transfer.cli.command import Command
from transfer.core.errors import UsageError
from transfer.core.settings import config_names
from transfer.engine.schedule import Schedule
from transfer.pretrain import main as pretrain
from transfer.run import main
from transfer.task import load_task

STEPS = 40


def read(name: str, *words: str) -> Command:
    made = command(name, "--backbone", "tiny", *words)
    if name in config_names("tasks"):
        made.fit_backbone(made.resolved(from_scratch=False), load_task(name))
    return made


def largest_rate(options: Any) -> float:
    """The largest rate of a training, as a share of the peak."""
    schedule = Schedule(options)
    moments = [schedule.clock(epoch, step, STEPS) for epoch in range(options.epochs) for step in range(STEPS)]
    return max(schedule.rate(moment, 1.0, STEPS) for moment in moments)


@pytest.mark.parametrize("name", ["reid", "finetune", "detect", "linear", "deit", "volo", "dino", "bigvision_i1k"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_short_training_of_any_recipe_reaches_its_rate(name: str, epochs: int) -> None:
    assert largest_rate(read(name, "--epochs", str(epochs)).options) > 0.95


@pytest.mark.parametrize(
    ("name", "words", "expected", "told"),
    [
        ("reid", "--epochs 3", {"warmup_epochs": 0.125, "schedule": "step"}, "120: warmup_epochs 5 -> 0.125"),
        ("reid", "--epochs 4.8", {"epochs": 4.8, "warmup_epochs": 0.2}, "120: warmup_epochs 5 -> 0.2"),
        ("reid", "--epochs 6", {"warmup_epochs": 5, "schedule": "epoch"}, ""),
        ("reid", "--epochs 3 --warmup-epochs 1", {"warmup_epochs": 1, "schedule": "epoch"}, ""),
        ("reid", "--epochs 0", {"warmup_epochs": 5, "schedule": "epoch"}, ""),
        ("reid", "--smoke --epochs 2", {"warmup_epochs": 0.7}, "recipe has 20: warmup_epochs 7 -> 0.7"),
        ("finetune", "--epochs 6", {"warmup_epochs": 0.1}, "schedule epoch -> step"),  # its clock starts an epoch late
        ("detect", "--epochs 12", {"milestones": (10.67, 11.56), "warmup_epochs": 0.1365}, "96.3] -> [10.67, 11.56]"),
        ("detect", "--epochs 200", {"milestones": (177.8, 192.6), "warmup_epochs": 0.1365}, "-> [177.8, 192.6]"),
        ("detect", "--config detect_1x --epochs 6", {"milestones": (4, 5.5)}, "12: milestones [8, 11] -> [4.0, 5.5]"),
        ("volo", "--epochs 25", {"warmup_epochs": 1.613, "cooldown_epochs": 0.8065}, "cooldown_epochs 10 -> 0.8065"),
        ("dino", "--epochs 1", {"warmup_epochs": 0.1, "freeze_last_layer": 0}, "freeze_last_layer 1 -> 0"),
        ("fewshot", "--size 32", {"size": 32, "resize": 36}, "resize 256 -> 36"),
        ("fewshot", "--smoke --size 48", {"size": 48, "resize": 48}, "resize 32 -> 48"),
        ("fewshot", "--backbone cifar_ti4 --weights random", {"size": 32, "resize": 36}, "--resize 36"),
        ("fewshot", "--backbone cifar_ti4 --weights random --size 224", {"size": 224, "resize": 256}, ""),
        ("reid", "--weights EXPORT", {}, "--size 256 128: 16 x 8 tokens of 16 pixels; the weights were trained at"),
        ("knn", "--weights EXPORT", {"size": 48, "resize": None}, "--size 48, where the recipe has --size 224: image"),
        ("tokens", "--weights EXPORT --smoke", {"size": 64}, ""),
        ("finetune", "--weights x.pth --weights-size 64 64", {"size": 64}, "image size of the weights"),
        ("classify", "--backbone vit_base_patch16_384", {"size": 384, "resize": None}, "image size of the weights"),
        ("linear", "", {"n_last_blocks": 2}, "--n-last-blocks 2, where the recipe has --n-last-blocks 4"),
        ("detect", "", {"relative": True, "window": 14}, ""),
        ("detect", "--backbone vit_tiny_patch16_224", {"relative": False, "window": 14}, "--no-relative, where"),
        ("detect", "--backbone resnet18", {"relative": False, "window": 0}, "resnet18 is not a plain ViT"),
    ],
)
def test_what_does_not_fit_the_epochs_or_the_backbone_is_adapted_and_told(
    name: str, words: str, expected: dict[str, Any], told: str, tmp_path: Path
) -> None:
    if "EXPORT" in words:
        export(create("tiny", img_size=48, weights="random"), tmp_path / "e")
    found = read(name, *words.replace("EXPORT", str(tmp_path / "e")).split())
    assert {key: getattr(found.options, key) for key in expected} == expected
    assert told in " ".join(found.fitted)
    assert bool(told) == bool(found.fitted)


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("fewshot", "--size 32 --resize 30", "--resize 30: below the --size 32 of the centre crop"),
        ("reid", "--epochs 3 --warmup-epochs 5", "--warmup-epochs 5.* is never reached in --epochs 3"),
        ("finetune", "--epochs 6 --warmup-epochs 5", "--warmup-epochs 5.*--schedule-offset -1"),
        ("volo", "--epochs 12 --cooldown-epochs 12", "--cooldown-epochs 12.*: the peak"),
        ("detect", "--epochs 6 --milestones 8 11", "--milestones"),
        ("reid", "--epochs 3 --config wrong.yaml", "wrong.yaml: .*epochs"),
        ("reid", "--epochs 3 --schedule epoch", "^--epochs 3: --warmup-epochs 0.125 with --schedule epoch"),
    ],
)
def test_what_the_user_set_is_refused_with_the_flag(name: str, words: str, said: str, here: Path) -> None:
    Path("wrong.yaml").write_text("warmup_epochs: x\nepochs: y\n")
    with pytest.raises(UsageError, match=said):
        read(name, *words.split())


@pytest.mark.parametrize(
    ("task", "words", "expected"),
    [
        ("knn", "", {"k": 20, "other_k": (10,)}),
        ("linear", "--epochs 1", {"batch_size": 8}),
        ("finetune", "--epochs 1", {"batch_size": 8}),
        ("fewshot", "", {"shots": (1, 5, 10)}),  # 10 is the primary score; every class has 6
        ("tokens", "", {"images": 20}),
        ("deit", "--epochs 1", {"batch_size": 8}),
        ("deit", "--epochs 1 --batch-size 60", {"batch_size": 60}),
    ],
)
def test_defaults_that_fit_60_images(task: str, words: str, expected: dict[str, Any], here: Path) -> None:
    for place in range(80):
        split = "train" if place < 60 else "val"
        draw(here / "small" / split / str(place % 10) / f"{place}.png", place, (32, 32))
    argv = ["--backbone", "tiny", "--dataset", "small", "--size", "32", "--workers", "0", *words.split()]
    assert (pretrain if task in config_names("pretrain") else main)([task, *argv]) == 0
    (record,) = [json.loads(file.read_bytes()) for file in Path("runs").glob("*/record.json")]
    assert {key: record["options"][key] for key in expected} == json.loads(json.dumps(expected))
    told = {note.split()[1] for note in record["notes"] if note.startswith("small: --")}
    flags = {name: f"--{name.replace('_', '-')}" for name in expected}
    assert {flag for name, flag in flags.items() if flag not in words and name != "k"} <= told
    assert not told & {*words.split()}


def test_files_of_the_user_count_as_flags_and_a_recipe_on_a_shipped_one_is_shorter(tmp_path: Path) -> None:
    short, own = tmp_path / "short.yaml", tmp_path / "own.yaml"
    short.write_text("epochs: 4\n")
    own.write_text("recipe: deit\nepochs: 4\n")
    assert read("reid", "--config", str(short)).options.warmup_epochs == 0.1667
    assert read(str(own)).fitted[0].startswith("--epochs 4, where the recipe has 300: warmup_epochs 5 -> 0.06667")
    assert "epochs" in read(str(own)).set_by_user  # so that nothing adapts it
    short.write_text("epochs: 4\nwarmup-epochs: 5\n")
    with pytest.raises(UsageError, match="peak learning rate is never reached"):
        read("reid", "--config", str(short))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--attention relu", ""),
        ("--epochs 3", "--epochs 3, where the recipe has 120: warmup_epochs 5 -> 0.125, schedule epoch -> step"),
    ],
)
def test_what_the_program_chooses_is_told(words: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reid", "--backbone", "tiny", *words.split(), "--dry-run"]) == 1, "the data is missing"
    told = capfd.readouterr().err.partition("error: ")[0]
    assert told.startswith(said)
    assert bool(told) == bool(said)


def test_weights_that_a_pretraining_does_not_take(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nweights: last.ckpt\n")
    for here in (False, True):
        assert pretrain(["dino", "--backbone", f"{tmp_path}/mine.yaml", "--dataset", "toy_digits", "--dry-run"]) == 0
        assert (f"from random weights; --weights {tmp_path}/last.ckpt starts" in capfd.readouterr().err) == here
        (tmp_path / "last.ckpt").touch()
