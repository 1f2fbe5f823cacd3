import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import balanced_accuracy_score

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import imagenet_synsets
from backbones.spec import BackboneSpec, resolve
from backbones.weights.export import export
from tasks.classify.scoring import choose_columns
from tests.tasks.support import digits, images_of, run_task, without
from transfer.core.errors import UserError
from transfer.data.classification import ClassificationData
from transfer.pretrain import main as pretrain
from transfer.records.per_sample import arrays_in
from transfer.records.store import Record
from transfer.run import main as run
from transfer.verify.checks import verify

DIGITS = tuple("0123456789")


def exported(folder: Path, classes: int = 10, about: dict[str, Any] | None = None) -> BackboneSpec:
    """`tiny` with a classifier that is sure of itself."""
    torch.manual_seed(3)
    backbone = create("tiny", img_size=32, classes=classes)
    torch.nn.init.normal_(backbone.model.head.weight)
    export(backbone, folder, {"pretrain.json": about} if about is not None else {})
    return resolve("tiny", weights=str(folder))


def trained(folder: Path, classes: int = 10, about: dict[str, Any] | None = None) -> Backbone:
    return create(exported(folder, classes, about), img_size=32, classes="trained")


def named(classes: tuple[str, ...] | None) -> ClassificationData:
    """Data with these classes; the images do not matter here."""
    assert classes is not None
    return replace(digits(1), name="mine", classes=classes)


def test_scores_are_those_of_the_logits(tmp_path: Path) -> None:
    spec, data = exported(tmp_path / "w", about={"classes": DIGITS}), without(digits(10), "train")
    assert data.val is not None
    scores, outcomes, here = run_task("classify", data, "--size", "32", "--resize", "32", spec=spec)
    with torch.no_grad():
        logits = create(spec, img_size=32, classes="trained").eval().logits(images_of(data.val))
        order = logits.argsort(1, descending=True).numpy()
    hits = order == data.val.labels[:, None]
    assert scores["top1"] == pytest.approx(hits[:, 0].mean())
    assert scores["top5"] == pytest.approx(hits[:, :5].any(1).mean())
    assert scores["macro_top1"] == pytest.approx(balanced_accuracy_score(data.val.labels, order[:, 0]))
    assert (outcomes["rank"] == hits.argmax(1)).all()
    assert here.notes == []


@pytest.mark.parametrize(("recipe", "mode"), [("deit", "bicubic"), ("bigvision_i1k", "area")])
def test_a_pretrained_classifier_scores_as_its_pretraining_did(
    recipe: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--backbone", "tiny", "--dataset", "toy_digits", "--subset", "60", "--threads", "1", "--workers", "0"]
    assert pretrain([recipe, *words, "--size", "32", "--resize", "44", "--epochs", "2", "--batch-size", "64"]) == 0
    assert run(["classify", *words, "--weights", "weights/tiny"]) == 0
    classified, pretrained = (Record.read(path) for path in sorted(Path("runs").glob("*/record.json")))
    assert classified.scores == pretrained.scores
    assert [classified.options[name] for name in ("size", "resize", "resize_mode")] == [32, 44, mode]


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
    assert ours is not None
    columns, remark = choose_columns(trained(tmp_path / "1k", 1000, {"classes": ours}), named(ours))
    assert (columns, remark) == (None, "")
    large = trained(tmp_path / "21k", 21843)
    columns, remark = choose_columns(large, named(ours))
    assert columns is not None
    theirs = imagenet_synsets(21843)
    assert theirs is not None
    found = {ours[label]: theirs[column] for label, column in enumerate(columns.tolist()) if column >= 0}
    assert all(name == column for name, column in found.items())
    assert set(ours) - set(found) == {"n04399382"}
    assert "999 classes of ImageNet-1k among 21843; missing: n04399382" in remark
    with pytest.raises(UserError, match=r"21843 there.*10 here"):
        choose_columns(large, digits(1))
    named_by_us = trained(tmp_path / "ours", 21843, {"classes": theirs[::-1]})
    columns_of_ours, _ = choose_columns(named_by_us, named(ours))
    assert columns_of_ours is not None
    assert torch.equal(columns_of_ours[columns >= 0], 21842 - columns[columns >= 0])


def test_logits_that_are_not_finite_are_an_outcome(tmp_path: Path) -> None:
    backbone = create("tiny", img_size=32, classes=10)
    torch.nn.init.constant_(backbone.model.head.bias, torch.inf)
    export(backbone, tmp_path / "w")
    scores, outcomes, here = run_task("classify", digits(2), spec=resolve("tiny", weights=str(tmp_path / "w")))
    assert (scores, outcomes, here.outcome.status) == ({}, {}, "nonfinite")
    assert "logits of the val split: not finite for " in here.outcome.reason


@pytest.fixture(scope="module")
def imagenet_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as test images of ten classes of ImageNet-1k, and a head of 1,000: class means; other classes win."""
    root, data, ours = tmp_path_factory.mktemp("sets"), digits(40), imagenet_synsets(1000)
    assert ours is not None
    backbone = create("tiny", img_size=32, classes=1000).eval()
    with torch.no_grad():
        features = backbone.pooled(images_of(data.train))
    means = torch.stack([features[data.training.labels == label].mean(0) for label in range(10)])
    layer = backbone.model.head
    layer.weight.data.normal_(generator=torch.Generator().manual_seed(0))[SUBSET] = means
    layer.bias.data.fill_(1000)[SUBSET] = -means.square().sum(1) / 2
    export(backbone, root / "weights", {"pretrain.json": {"classes": ours}})
    (root / "flat" / "val").mkdir(parents=True)
    for number, (image, label) in enumerate(zip(images_of(data.val), data.validation.labels), start=1):
        wnid, name = ours[SUBSET[label]], f"ILSVRC2012_val_{number:08d}.png"
        for folder in (root / "set" / wnid, root / "flat" / "val" / wnid):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 255).byte().permute(1, 2, 0).numpy()).save(folder / name)
    (root / "set.yaml").write_text("format: imagenet_test\nroot: set\nclasses: 10\n")
    (root / "real.yaml").write_text("format: imagenet\nroot: flat\nlabels: real.json\n")
    return root


SUBSET = [6, 11, 13, 15, 17, 22, 23, 27, 30, 37]


def classified(root: Path, name: str, out: Path) -> tuple[Record, dict[str, Any], torch.Tensor]:
    words = ["--backbone", "tiny", "--weights", str(root / "weights"), "--size", "32", "--resize", "32"]
    words += ["--threads", "1", "--workers", "0", "--out", str(out)]
    assert run(["classify", *words, "--dataset", str(root / name)]) == 0
    (path,) = out.glob("*/record.json")
    assert verify(path.parent).wrong == []
    backbone = create(resolve("tiny", weights=str(root / "weights")), img_size=32, classes="trained").eval()
    kept = arrays_in(path.with_name("outcomes.npz"))
    files = [next((root / "flat" / "val").glob(f"*/{sample.rpartition('/')[2]}")) for sample in kept["sample"]]
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) for file in files]) / 255
    with torch.no_grad():
        return Record.read(path), kept, backbone.logits(pixels)


def test_a_head_of_1000_is_scored_among_the_classes_of_the_set(imagenet_like: Path, tmp_path: Path) -> None:
    record, kept, logits = classified(imagenet_like, "set.yaml", tmp_path)
    right = logits[:, SUBSET].argmax(1).numpy() == kept["label"]  # as published: the subset's logits alone
    assert record.scores["top1"] == pytest.approx(right.mean())
    assert record.scores["top1"] > 0.5
    assert not {*logits.argmax(1).tolist()} & {*SUBSET}
    assert any("best of 10 classes of ImageNet-1k among 1000; missing: none" in note for note in record.notes)


def test_reassessed_labels_take_any_of_an_images_classes(imagenet_like: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    listed = [draw.choice(1000, size, replace=False).tolist() for size in draw.choice([0, 1, 300, 600], 400)]
    (imagenet_like / "flat" / "real.json").write_text(json.dumps(listed))
    record, kept, logits = classified(imagenet_like, "real.yaml", tmp_path)
    labels = [listed[int(sample[-12:-4]) - 1] for sample in kept["sample"]]
    assert all(labels)
    assert len(labels) < len(list((imagenet_like / "flat" / "val").glob("*/*")))
    assert record.scores["top1"] == np.mean([guess in true for guess, true in zip(logits.argmax(1).tolist(), labels)])
    fifth = logits.topk(5)[1].tolist()
    assert record.scores["top5"] == np.mean([not {*best}.isdisjoint(true) for best, true in zip(fifth, labels)])
    assert "macro_top1" not in record.scores
