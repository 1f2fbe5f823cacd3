"""Classifiers as they are and fine-tuned, and what all tasks on labelled images refuse."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import imagenet_synsets
from backbones.spec import BackboneSpec, resolve
from backbones.weights.export import export
from tasks.classify.scoring import choose_columns
from tests.runs import record
from tests.tasks.support import digits, images_of, run_task, smoke_options
from transfer.core.errors import UserError
from transfer.data.classification import ClassificationData
from transfer.data.spec import find_root, resolve_dataset
from transfer.pretrain import main as pretrain
from transfer.records.record import Record
from transfer.run import main as run
from transfer.task import load_task

DIGITS = tuple("0123456789")
SUBSET = [6, 11, 13, 15, 17, 22, 23, 27, 30, 37]


def exported(folder: Path, classes: int = 10, about: dict[str, Any] | None = None) -> BackboneSpec:
    """`tiny` with a classifier that is sure of itself."""
    torch.manual_seed(3)
    backbone = create("tiny", img_size=32, classes=classes)
    torch.nn.init.normal_(backbone.model.head.weight)
    export(backbone, folder, {"pretrain.json": about} if about is not None else {})
    return resolve("tiny", weights=str(folder))


def trained(folder: Path, classes: int = 10, about: dict[str, Any] | None = None) -> Backbone:
    return create(exported(folder, classes, about), img_size=32, classes="trained")


def logits_of(spec: BackboneSpec, data: ClassificationData) -> torch.Tensor:
    with torch.no_grad():
        return create(spec, img_size=32, classes="trained").eval().logits(images_of(data.val))


def named(classes: tuple[str, ...] | None) -> ClassificationData:
    """Data with these classes; the images do not matter here."""
    return replace(digits(1), name="mine", classes=classes)


def test_scores_are_those_of_the_logits(tmp_path: Path) -> None:
    spec, data = exported(tmp_path / "w", about={"classes": DIGITS}), replace(digits(10), train=None)
    scores, outcomes, here = run_task("classify", data, "--size", "32", "--resize", "32", spec=spec)
    order = logits_of(spec, data).argsort(1, descending=True).numpy()
    hits = order == data.val.labels[:, None]
    assert scores["top1"] == pytest.approx(hits[:, 0].mean())
    assert scores["top5"] == pytest.approx(hits[:, :5].any(1).mean())
    assert scores["macro_top1"] == pytest.approx(balanced_accuracy_score(data.val.labels, order[:, 0]))
    assert (outcomes["rank"] == hits.argmax(1)).all()
    assert here.notes == []


@pytest.mark.parametrize(("recipe", "mode"), [("deit", "bicubic"), ("bigvision_i1k", "area")])
def test_a_pretrained_classifier_scores_as_its_pretraining_did(recipe, mode, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--dataset", "toy_digits", "--subset", "60", "--threads", "1", "--workers", "0"]
    sizes = ["--size", "32", "--resize", "44", "--epochs", "2", "--batch-size", "64"]
    assert pretrain([recipe, "--backbone", "tiny", *words, *sizes]) == 0
    assert run(["classify", *words, "--backbone", "weights/tiny"]) == 0
    classified, pretrained = (Record.read(path) for path in sorted(Path("runs").glob("*/record.json")))
    assert classified.scores == pretrained.scores
    assert [classified.options[name] for name in ("size", "resize", "resize_mode")] == [32, 44, mode]


def test_finetuning_leaves_weights_that_others_start_from_and_name(tmp_path: Path) -> None:
    words = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--out"]
    learning = ["--subset", "60", "--epochs", "8", "--lr", "2e-3", "--sam", "sam"]
    assert run(["finetune", *words, str(tmp_path / "first"), *learning]) == 0
    first, weights = record(tmp_path / "first"), str(next((tmp_path / "first").glob("*/export")))
    assert 0.5 < first.scores["top1"] < first.scores["top5"]
    assert any("starts from random weights" in note for note in first.notes)
    short = ["--epochs", "1", "--warmup-epochs", "0", "--weights", weights]
    assert run(["reid", *words, str(tmp_path / "second"), *short]) == 0
    second = record(tmp_path / "second")
    assert not any("random weights" in note for note in second.notes)
    assert first.export.startswith("sha256:")
    assert second.weights_id == first.export


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ([*"1023456789"], "another order: class 0 is 1 there, 0 here"),
        ([*"012345678x"], "10 there (x only); 10 here (9 only)"),
        ([*"012345678"], "9 there; 10 here (9 only)"),
        (None, "12 there, 10 here"),
    ],
)
def test_other_classes_than_the_datas(theirs: list[str] | None, said: str, tmp_path: Path) -> None:
    spec = exported(tmp_path / "w", len(theirs) if theirs else 12, {"classes": theirs} if theirs else {})
    with pytest.raises(UserError) as caught:
        run_task("classify", digits(2), spec=spec)
    assert said in str(caught.value)
    assert "linear or finetune" in str(caught.value)


def test_imagenets_classifiers(tmp_path: Path) -> None:
    ours = imagenet_synsets(1000)
    columns, remark = choose_columns(trained(tmp_path / "1k", 1000, {"classes": ours}), named(ours))
    assert (columns, remark) == (None, "")
    large = trained(tmp_path / "21k", 21843)
    columns, remark = choose_columns(large, named(ours))
    theirs = imagenet_synsets(21843)
    found = {ours[label]: theirs[column] for label, column in enumerate(columns.tolist()) if column >= 0}
    assert all(name == column for name, column in found.items())
    assert set(ours) - set(found) == {"n04399382"}
    assert "999 classes of ImageNet-1k among 21843; missing: n04399382" in remark
    with pytest.raises(UserError, match=r"21843 there.*10 here"):
        choose_columns(large, digits(1))
    named_by_us = trained(tmp_path / "ours", 21843, {"classes": theirs[::-1]})
    columns_of_ours, _ = choose_columns(named_by_us, named(ours))
    assert torch.equal(columns_of_ours[columns >= 0], 21842 - columns[columns >= 0])


def test_logits_that_are_not_finite_are_an_outcome(tmp_path: Path) -> None:
    backbone = create("tiny", img_size=32, classes=10)
    torch.nn.init.constant_(backbone.model.head.weight, 3e38)  # which files may have, unlike infinity
    export(backbone, tmp_path / "w")
    scores, outcomes, here = run_task("classify", digits(2), spec=resolve("tiny", weights=str(tmp_path / "w")))
    assert (scores, outcomes, here.outcome.status) == ({}, {}, "nonfinite")
    assert "logits of the val split: not finite for " in here.outcome.reason


def test_a_head_of_1000_is_scored_among_the_classes_of_the_set(tmp_path: Path) -> None:
    spec = exported(tmp_path / "w", 1000, {"classes": imagenet_synsets(1000)})
    data = replace(digits(40), classes=tuple(np.array(imagenet_synsets(1000))[SUBSET].tolist()))
    scores, _, here = run_task("classify", data, "--size", "32", "--resize", "32", spec=spec)
    logits = logits_of(spec, data)
    right = logits[:, SUBSET].argmax(1).numpy() == data.validation.labels  # as published: the subset's logits alone
    assert scores["top1"] == pytest.approx(right.mean())
    assert not {*logits.argmax(1).tolist()} <= {*SUBSET}
    assert any("best of 10 classes of ImageNet-1k among 1000; missing: none" in note for note in here.notes)


def test_reassessed_labels_take_any_of_an_images_classes(tmp_path: Path) -> None:
    spec = exported(tmp_path / "w", 1000, {"classes": imagenet_synsets(1000)})
    val, draw = digits(40).validation, np.random.default_rng(0)
    listed = [draw.choice(1000, draw.choice([1, 300, 600]), replace=False).tolist() for _ in val.labels]
    several = np.array([*zip_longest(*listed, fillvalue=-1)]).T
    val = replace(val, labels=several[:, 0], true_labels=several)
    data = replace(named(imagenet_synsets(1000)), val=val)
    scores, _, _ = run_task("classify", data, "--size", "32", "--resize", "32", spec=spec)
    for k in (1, 5):
        best = logits_of(spec, data).topk(k)[1].tolist()
        assert scores[f"top{k}"] == np.mean([not {*found}.isdisjoint(true) for found, true in zip(best, listed)])
    assert scores.keys() == {"top1", "top5"}, "an average over classes is not defined"


@pytest.mark.parametrize("task", ["classify", "knn", "linear"])
def test_missing_training_images_are_named_where_they_are_needed(task: str, tmp_path: Path) -> None:
    shutil.copytree(find_root(resolve_dataset("toy_digits"), None) / "val", tmp_path / "digits" / "val")
    (tmp_path / "mine.yaml").write_text("format: image_folder\nroot: digits\n")
    spec, options = resolve_dataset(str(tmp_path / "mine.yaml")), smoke_options(task)
    refused = pytest.raises(UserError, match=r"training split, which is missing.*key `train`")
    with nullcontext() if task == "classify" else refused:
        data = load_task(task).open(spec, options, root=None, subset=None, drop_corrupt=False)
        assert len(data.val) == 355
