"""Supervised pretraining: the step, the learner's purity, resuming, ranks, whole runs on drawn images, and recipes."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from backbones.backbone import create
from backbones.pretrain.accuracy import accuracies, top_k
from backbones.pretrain.supervised import training
from backbones.pretrain.supervised.losses import mix
from backbones.pretrain.supervised.method import METHOD, SupervisedOptions
from backbones.pretrain.supervised.training import SupervisedLearner, train_loader
from backbones.spec import BackboneSpec, resolve
from tests.backbones.support import in_pieces
from tests.processes import spawn_ranks, start_rank
from tests.support import command, context
from transfer.core.errors import UserError
from transfer.data.classification import ClassificationData, open_classification
from transfer.data.loading.loader import RunLoader
from transfer.data.spec import DatasetSpec
from transfer.data.splits.manifest import named_files
from transfer.engine import dist
from transfer.engine.context import Context
from transfer.engine.outcome import Outcome, Signs
from transfer.engine.schedule import Schedule
from transfer.engine.step import Stepper

CLASSES = 3
OPTIONS = vars(command("cifar_deit", "--backbone", "tiny", "--smoke").options) | {
    "epochs": 2, "lr": 2e-3, "min_lr": None, "warmup_epochs": 0.0, "warmup_lr": None, "no_decay": ("1d",),
    "batch_size": 8, "eval_batch_size": 16, "validate_at": (), "precision": "fp32",
}  # fmt: skip
MIXED = {"mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1, "drop_path": 0.1, "erase": 0.25}
FAST = {"image_ops": "fast", "augment": "timm", "pad": 0, "crop_area": (0.3, 1.0), "crop_ratio": (0.8, 1.25)}
FAST |= {"auto_augment": "rand-m9-mstd0.5-inc1", "erase": 0.25}
BOTH = {"sam": "sam", "grad_accum_steps": 2} | FAST
VOLO = {"dense_weight": 0.5, "augment": "crop", "crop_area": (0.3, 1.0), "pad": 0, "flip": 0.5, "smoothing": 0.1}


def options(**given: Any) -> SupervisedOptions:
    return SupervisedOptions(**{**OPTIONS, **given})


def tiny(**given: Any) -> BackboneSpec:
    return resolve("tiny", **given)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of noisy bars: horizontal, vertical, none."""
    root, rng = tmp_path_factory.mktemp("bars"), np.random.default_rng(0)
    stripes = np.sin(np.arange(32) * 0.8) * 90
    patterns = {"across": stripes[:, None], "down": stripes[None], "none": np.zeros((1, 1))}
    for split, count in (("train", 24), ("val", 8)):
        for name, pattern in patterns.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = 128 + pattern + rng.normal(0, 25, (32, 32))
                image = np.repeat(pixels.clip(0, 255).astype(np.uint8)[..., None], 3, 2)
                Image.fromarray(image).save(root / split / name / f"{number}.png")
    return root


@pytest.fixture
def data(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassificationData:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return opened(images)


def opened(images: Path) -> ClassificationData:
    return open_classification(DatasetSpec(name="bars", format="image_folder", root=(str(images),)), None)


def learner(spec: BackboneSpec | None = None, **given: Any) -> SupervisedLearner:
    torch.manual_seed(0)
    chosen = options(**given)
    backbone = create(spec or tiny(), img_size=32, classes=CLASSES, drop_path=chosen.drop_path)
    return SupervisedLearner(backbone, torch.full((CLASSES,), 1 / CLASSES), chosen, seed=0)


def batch(count: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, 32, 32, generator=generator), torch.arange(count) % CLASSES


@pytest.mark.parametrize("given", [{}, MIXED, {"loss": "sigmoid", "head_bias": -2, "mixing": "bigvision", "mixup": 1}])
def test_forward_is_pure_and_its_loss_is_that_of_the_mixed_images(given: dict[str, Any]) -> None:
    model, seen = learner(**given), batch()

    def found(seed: int, step: int) -> Tensor:
        torch.manual_seed(seed)
        return model(seen, step)["loss"]

    loss = found(5, 3)
    assert torch.equal(found(5, 3), loss)
    assert not given or not torch.equal(found(6, 4), loss)
    assert torch.equal(seen[0], batch()[0])
    torch.manual_seed(5)
    mixed, targets = mix(*seen, CLASSES, model.options, seed=0, step=3)
    logits = model.backbone.logits(mixed)
    expected = -(targets * logits.log_softmax(1)).sum(1).mean()
    if given.get("loss") == "sigmoid":
        expected = -(targets * logits.sigmoid().log() + (1 - targets) * (1 - logits.sigmoid()).log()).sum(1).mean()
    assert torch.allclose(loss, expected, atol=1e-5)


@pytest.mark.parametrize(("loss", "level"), [("softmax", math.log(3)), ("sigmoid", 3 * 0.6365141682948128)])
def test_a_classifier_at_its_best_constant_has_the_loss_of_chance(loss: str, level: float) -> None:
    model = learner(loss=loss, head_bias=math.log(0.5))  # sigmoid(ln 1/2) = 1/3
    model.backbone.model.head.weight.data.zero_()
    images, labels = batch(9)
    assert model.signs() == Signs(chance=pytest.approx(level), accuracy=pytest.approx(1 / 3))
    assert model((images, labels), 1)["loss"].item() == pytest.approx(level, rel=1e-5)


def test_balanced_classes_weigh_the_loss_as_in_torch() -> None:
    prior, chosen = torch.tensor([0.5, 0.25, 0.25]), options(**MIXED, class_weights="balanced")
    model = SupervisedLearner(create(tiny(), img_size=32, classes=CLASSES), prior, chosen, seed=0).eval()
    torch.manual_seed(5)
    loss = model(batch(), 3)["loss"]
    torch.manual_seed(5)
    mixed, targets = mix(*batch(), CLASSES, chosen, seed=0, step=3)
    weights = torch.tensor(compute_class_weight("balanced", classes=np.arange(3), y=[0, 0, 1, 2])).float()
    assert torch.allclose(loss, nn.functional.cross_entropy(model.backbone.logits(mixed), targets, weights))
    mean = weights * (0.9 * prior + 0.1 / 3)
    best = -(mean * (mean / mean.sum()).log()).sum().item()
    assert model.signs().chance == pytest.approx(best, rel=1e-5)


def test_one_step_is_that_of_plain_torch() -> None:
    ours, plain = learner(ema=0.9), learner()
    stepper = Stepper(ours, options(ema=0.9, warmup_epochs=0.0), context())
    images, labels = batch()
    stats, _, _ = stepper.step(1, 0.0, (images, labels), 10).read()
    before = {name: value.clone() for name, value in plain.backbone.state_dict().items()}
    decayed = [p for p in plain.backbone.parameters() if p.ndim > 1]
    rest = [p for p in plain.backbone.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    normalised = (images - plain.backbone.mean) / plain.backbone.std
    loss = nn.functional.cross_entropy(plain.backbone.model(normalised), labels)
    loss.backward()
    optimizer.step()
    assert stats["loss"] == pytest.approx(loss.item(), rel=1e-6)
    for name, value in plain.backbone.state_dict().items():
        assert torch.allclose(ours.backbone.state_dict()[name], value, atol=1e-6), name
        average = 0.9 * before[name] + 0.1 * value
        assert torch.allclose(ours.average.module.state_dict()[name], average, atol=1e-6), name


CUT = {"epochs": 1.6, "batch_size": 8}


@pytest.mark.parametrize("given", [{"repeats": 3, "batch_size": 6}, CUT, pytest.param(BOTH, marks=pytest.mark.nightly)])
def test_resumed_equals_uninterrupted_to_the_bit(data: Any, tmp_path: Path, given: Any, capfd: Any) -> None:
    given = {**MIXED, "ema": 0.9, "export": "ema", **given}
    chosen = options(**given)

    def start(here: Context) -> tuple[SupervisedLearner, RunLoader]:
        model = learner(tiny(stem="conv"), **given)
        return model, train_loader(data.train, model.backbone, chosen, here)

    whole, history = in_pieces(tmp_path / "whole", [], chosen, start)
    parts, again = in_pieces(tmp_path / "parts", [4, 11], chosen, start)
    assert history == again
    assert len(history) == round(chosen.epochs * (72 // chosen.batch_size))
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
    said = capfd.readouterr().err
    assert "repeats" not in given or "48 of 72 training images (repeated augmentation shows 24 up to 3 times" in said


TWO = {"sync_bn": True, "ema": 0.9, "validate_at": (1,), "drop_path": 0.4}


def train_as_rank(rank: int, port: int, images: str, folder: str, given: dict[str, Any]) -> None:
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache-{rank}"
    ranks = start_rank(rank, port)
    here = context(Path(folder), ranks=ranks)
    scores, _ = METHOD.run(tiny(stem="conv"), opened(Path(images)), options(**given), here)
    torch.save(scores, f"{folder}/{rank}.pt")
    dist.stop()


@pytest.mark.nightly
def test_two_processes_train_as_one(data: ClassificationData, images: Path, tmp_path: Path) -> None:
    given = TWO | FAST
    together, alone = tmp_path / "together", tmp_path / "alone"
    for folder in (together, alone):
        folder.mkdir()
    spawn_ranks(train_as_rank, str(images), str(together), given)
    scores, _ = METHOD.run(tiny(stem="conv"), data, options(**given), context(alone))
    lines = [[*map(json.loads, (folder / "history.jsonl").open())] for folder in (alone, together)]
    losses = [[line["loss"] for line in side if "loss" in line] for side in lines]
    assert len(losses[0]) == 18
    assert losses[1] == pytest.approx(losses[0], abs=5e-4)
    assert all(torch.load(together / f"{rank}.pt") == scores for rank in (0, 1))


AVERAGED = {"loss": "sigmoid", "head_bias": -1, "ema": 0.8, "export": "ema", "repeats": 3}


@pytest.mark.parametrize("given", [{}, {"epochs": 11.6}, AVERAGED])
def test_a_run_beats_chance_and_its_export_gives_the_same_scores(data, tmp_path, given, monkeypatch) -> None:
    chosen = options(**{"epochs": 12, "validate_at": (6, -1), **given})
    here, scored = context(tmp_path), []
    monkeypatch.setattr(training, "top_k", lambda *args, **named: scored.append(1) or top_k(*args, **named))
    METHOD.check(tiny(), data, chosen, here)
    scores, outcomes = METHOD.run(tiny(), data, chosen, here)
    assert here.outcome.status == "completed"
    assert scores["top1"] > 0.6
    assert scores == METHOD.rescore(outcomes)
    assert scores["top5"] == 1.0
    assert len(outcomes["rank"]) == len(outcomes["sample"]) == 24
    validated = [line for line in map(json.loads, (tmp_path / "history.jsonl").open()) if "top1" in line]
    assert [line["epoch"] for line in validated] == [6, chosen.epochs]
    assert len(scored) == 2 + ("ema" in given)  # the last epoch's validation is the score; an average is judged
    assert validated[-1]["top1"] == scores["top1"]
    about = json.loads((tmp_path / "export/pretrain.json").read_text())
    assert about["classes"] == ["across", "down", "none"]
    again = create(resolve(f"local-dir:{tmp_path / 'export'}"), img_size=32, classes="trained")
    loaded = top_k(again, data.val, replace(chosen, eval_batch_size=5), context())
    assert accuracies(loaded) == scores


def test_an_average_that_is_still_the_start_is_not_called_trained(data: Any, tmp_path: Path) -> None:
    """The network trains, its exported average does not leave the initialisation in so few steps."""
    here = context(tmp_path)
    METHOD.run(tiny(), data, options(epochs=12, ema=0.99999, export="ema"), here)
    assert (here.outcome.status, here.outcome.rule) == ("not_judged", 3)
    assert here.outcome.reason.startswith("nothing moved: training changed the exported weights by")


@pytest.mark.parametrize(("right", "status"), [(1, "completed"), (3, "at_chance")])
def test_an_average_that_guesses_has_failed_though_the_network_trains(data: Any, right: int, status: str) -> None:
    """It is judged by training images, all right or a third of them."""
    here = context()
    here.outcome = Outcome("completed")
    METHOD._judge_average(1 / 3, lambda seen: {"rank": np.arange(len(seen.val)) % right}, data, here)
    assert here.outcome.status == status
    assert ("33.3 % of 72 training images right, as by guessing" in here.outcome.reason) == (status == "at_chance")


def test_a_failed_training_shows_what_it_scores_and_leaves_no_weights(data: Any, tmp_path: Path) -> None:
    here = context(tmp_path)
    assert METHOD.execute(tiny(), data, options(epochs=12, lr=1e-9), here) == ({}, {})
    assert (here.outcome.status, here.outcome.rule) == ("at_chance", 2)
    assert 0 <= here.details["failed_scores"]["top1"] <= 0.6
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("at", [(), (1, -1)])
def test_held_out_images_are_validated_on_and_the_test_images_scored_once(data, tmp_path, at, monkeypatch) -> None:
    scored = list[Any]()
    monkeypatch.setattr(
        training, "top_k", lambda net, split, *a, **b: scored.append(split) or top_k(net, split, *a, **b)
    )
    here, held = context(tmp_path), replace(data.train, labels=(data.train.labels + 1) % 3)
    scores, outcomes = METHOD.execute(tiny(), replace(data, held_out=held), options(epochs=2, validate_at=at), here)
    assert scored == [held] * max(1, len(at)) + [data.val]
    assert len(outcomes["rank"]) == len(data.val)
    assert scores == METHOD.rescore(outcomes) != here.details["held_out"]
    lines = [line for line in map(json.loads, (tmp_path / "history.jsonl").open()) if "top1" in line]
    assert {name: lines[-1][name] for name in scores} == here.details["held_out"]
    assert {line["epoch"] for line in lines} == {*at, 2} - {-1}


def test_without_validation_nothing_is_scored_but_weights_are_exported(data: Any, tmp_path: Path) -> None:
    here = context(tmp_path)
    assert METHOD.run(tiny(), replace(data, val=None), options(epochs=1), here) == ({}, {})
    assert (tmp_path / "export/model.safetensors").exists()
    assert any("no validation split" in note for note in here.notes)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"size": 40, "resize": 40}, "use multiples of 16"), ({"batch_size": 100}, "72 training images"),
     ({"batch_size": 9, "mixup": 0.2}, "of 9 images.*even"), ({"export": "ema"}, "--export"),
     ({"token_labels": Path("maps")}, "--"), ({**VOLO, "mixup": 0.5}, "--"), ({**VOLO, "loss": "sigmoid"}, "--"),
     ({"class_weights": "balanced", "loss": "sigmoid"}, "--class-weights"),
     ({"ema": 1.0}, "--ema"), ({"resize": 16}, "--resize"), ({"label_fraction": 0.0}, "--label-fraction")],
)  # fmt: skip
def test_what_cannot_work_is_known_before_the_training(data: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        METHOD.check(tiny(), data, options(**given), context())


def label_maps(folder: Path, names: list[str], classes: list[int], wrong: int = 0) -> Path:
    """Maps whose whole image shows the class of the image (or the next one)."""
    for name, label in zip(names, classes):
        path = (folder / name).with_suffix(".pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        scores, ids = np.full((1, 3, 3), 8.0), np.full((1, 3, 3), (label + wrong) % CLASSES)
        torch.save(torch.from_numpy(np.stack([scores, ids]).astype(np.float32)), path)
    return folder


def test_tokens_train_under_label_maps(data: ClassificationData, tmp_path: Path) -> None:
    labels = data.train.labels.tolist()
    spec, given = resolve("volo_tiny", weights="random"), {"epochs": 8, "lr": 4e-3}
    results = {}
    for wrong in (0, 1):
        maps = label_maps(tmp_path / f"maps-{wrong}", list(data.train.names), labels, wrong)
        chosen = options(**{**VOLO, "augment": "timm", "erase": 0.25}, **given, token_labels=maps)
        (tmp_path / f"run-{wrong}").mkdir()
        METHOD.check(spec, data, chosen, context())
        here = context(tmp_path / f"run-{wrong}")
        results[wrong], _ = METHOD.run(spec, data, chosen, here)
        assert here.outcome.status == "completed"
    line = json.loads((tmp_path / "run-0" / "history.jsonl").read_text().splitlines()[0])
    assert line["loss"] == pytest.approx(line["class_loss"] + 0.5 * line["token_loss"], rel=1e-5)
    assert results[0]["top1"] > 0.6
    assert results[1]["top1"] < 0.2  # it learned what the maps say, not the labels
    (tmp_path / "maps-0" / "none" / "3.pt").unlink()
    named_files.cache_clear()  # as the next command does
    with pytest.raises(UserError, match="no label map for 1 of 72 training images"):
        METHOD.check(spec, data, options(**VOLO, token_labels=tmp_path / "maps-0"), context())


def recipe_options(recipe: str) -> Any:
    return command(recipe, "--backbone", "tiny").options


def test_deit_holds_its_rate_for_an_epoch_one_behind() -> None:
    recipe = recipe_options("deit")
    schedule = Schedule(recipe)
    for epoch in range(300):
        behind = max(epoch - 1, 0)
        expected = 1e-6 + behind * (1e-3 - 1e-6) / 5
        if behind >= 5:
            expected = 1e-5 + (1e-3 - 1e-5) * (1 + math.cos(math.pi * behind / 300)) / 2
        assert schedule.rate(schedule.clock(epoch, 3, 8), recipe.lr) == pytest.approx(expected, abs=1e-12)


def test_volo_cools_down_behind_three_hundred_epochs() -> None:
    recipe = recipe_options("volo")
    schedule = Schedule(recipe)
    rates = [schedule.rate(schedule.clock(epoch, 0, 1), recipe.lr) for epoch in range(recipe.epochs)]
    assert rates[299] > rates[300]
    assert rates[300:] == pytest.approx([1e-5] * 10)
    assert rates[150] == pytest.approx((1.6e-3 + 1e-5) / 2)


@pytest.mark.parametrize(("recipe", "images"), [("bigvision_i1k", 1_268_355), ("bigvision_i21k", 12_692_121)])
def test_big_vision_warms_up_for_ten_thousand_steps(recipe: str, images: int) -> None:
    found = recipe_options(recipe)
    assert found.batch_size == 4096
    assert found.warmup_epochs * (images // found.batch_size) == pytest.approx(10_000, rel=1e-3)
    assert (found.loss, found.clip_grad, found.decay_scale) == ("sigmoid", 1.0, "schedule")
