"""Segmentation of drawn shapes. The backbone is `tiny` with random weights: a patch embedding tells the patterns."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score
from torch.nn import functional as F

import transfer
from backbones.backbone import create
from backbones.spec import resolve
from tasks.segment.task import TASK, resampled
from tasks.segment.training import MaskedImages, SegmentLearner, check, make_map_encoder, random_view, windows
from tests.processes import run_by_ranks
from tests.runs import assert_equal_runs, history, record
from tests.support import command, context, stopped_after
from tests.tasks.support import smoke_options
from transfer.core.errors import UsageError
from transfer.data.classification import open_classification
from transfer.data.formats.masks import IGNORED
from transfer.data.spec import resolve_dataset
from transfer.predict.__main__ import main as predict
from transfer.report.sections import ReportRequest, sections
from transfer.run import main
from transfer.task import load_task

SMOKE: dict[str, Any] = {"smoke": True, "threads": 1, "progress": False, "backbone": "tiny", "size": 96}
WORDS = ["segment", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--size", "96"]
WORDS += ["--subset", "8", "--epochs", "2"]


@cache
def shapes() -> Any:
    return open_classification(resolve_dataset("toy_masks"), None)


def pixels(split: Any) -> tuple[np.ndarray, np.ndarray]:
    """A color bin of each labelled pixel of a split, of 16 shades a channel, and its label."""
    colors = np.concatenate([np.asarray(split.read(index)).reshape(-1, 3) for index in range(len(split))])
    labels = np.concatenate([np.asarray(split.mask(index)).ravel() for index in range(len(split))])
    return (colors[labels != IGNORED] // 16 @ [256, 16, 1]), labels[labels != IGNORED]


def test_it_beats_colors_by_ten_points(tmp_path: Path) -> None:
    run = transfer.evaluate("segment", out=tmp_path, epochs=3, **SMOKE)[0]
    (bins, labels), (seen, truth) = pixels(shapes().train), pixels(shapes().val)
    counts = np.stack([np.bincount(bins[labels == label], minlength=4096) for label in range(4)])
    baseline = jaccard_score(truth, counts[:, seen].argmax(0), average="macro")
    assert 0.15 < baseline < run.scores["mIoU"] - 0.1
    kept = run.per_sample()
    assert kept["labelled"].sum(0).tolist() == np.bincount(truth).tolist()
    assert run.scores["pixel_accuracy"] == kept["intersection"].sum() / len(truth)
    (section,) = sections(transfer.load(tmp_path), ReportRequest(per_class=True))
    assert section.table["class"] == list(shapes().classes)
    assert np.mean(section.table["mIoU"]) == pytest.approx(run.record.shown("mIoU"))
    rows = zip(*(section.table[f"mIoU{end}"] for end in (" low", "", " high")))
    assert all(low < value < high for low, value, high in rows)


def test_labels_of_images_are_those_of_the_evaluation_to_the_bit(tmp_path: Path) -> None:
    """Also of a stem with batch norm, whose statistics stay."""
    run = transfer.evaluate("segment", out=tmp_path, stem="conv", subset=8, epochs=1, **SMOKE)[0]
    val = open_classification(resolve_dataset("toy_masks"), None, subset=8).validation
    words = [str(run.folder), *map(val.path, range(8)), "--to", str(tmp_path / "shares.csv")]
    assert predict([*words, "--pictures", str(tmp_path / "labels")]) == 0
    kept = run.per_sample()
    for index, name in enumerate(val.names):
        image = Image.open(tmp_path / "labels" / f"{Path(name).name}.png")
        truth, found = np.asarray(val.mask(index)), np.asarray(image)
        assert (image.mode, image.size) == ("P", val.read(index).size)
        table = confusion_matrix(truth[truth != IGNORED], found[truth != IGNORED], labels=range(4))
        assert table.diagonal().tolist() == kept["intersection"][kept["sample"] == name][0].tolist()
    assert pd.read_csv(tmp_path / "shares.csv").groupby("image")["score"].sum().tolist() == pytest.approx([1] * 8)


def test_scores_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    truth, found = rng.choice([0, 1, 2, 4], (20, 300)), rng.integers(0, 5, (20, 300))
    tables = np.stack([confusion_matrix(*pair, labels=range(5)) for pair in zip(truth, found)])
    right, true, said = tables.diagonal(0, 1, 2), tables.sum(2), tables.sum(1)
    names = np.array([f"{place}.jpg" for place in range(20)][::-1])
    kept = {"sample": names, "intersection": right, "union": true + said - right, "labelled": true}
    drawn = np.random.default_rng(0).multinomial(20, np.full(20, 1 / 20), size=500)[7]
    for rows, scores in (
        (np.arange(20), TASK.rescore(kept)),
        (np.repeat(np.argsort(names), drawn), {name[10:]: values[7] for name, values in resampled(kept).items()}),
    ):
        y, x = truth[rows].ravel(), found[rows].ravel()
        wanted = jaccard_score(y, x, labels=[0, 1, 2, 4], average="macro")  # class 3 is in no mask, though it is found
        assert scores == pytest.approx({"mIoU": wanted, "pixel_accuracy": accuracy_score(y, x)})


@pytest.mark.parametrize(("height", "width"), [(512, 512), (512, 683), (512, 2048), (1025, 512)])
def test_windows_are_those_of_mmsegmentation(height: int, width: int) -> None:
    rows, columns = (max(side - 512 + 341 - 1, 0) // 341 + 1 for side in (height, width))
    wanted = [(min(341 * i, height - 512), min(341 * j, width - 512)) for i in range(rows) for j in range(columns)]
    assert windows(height, width, 512) == wanted


def test_windows_are_averaged_enlarged_and_counted() -> None:
    torch.manual_seed(0)
    learner = SegmentLearner(lambda images: F.avg_pool2d(images, 4), 3, 5).eval()
    image, total, count = torch.rand(1, 3, 12, 20), torch.zeros(1, 5, 12, 20), torch.zeros(12, 20)
    labels = torch.randint(0, 4, (1, 18, 30))
    labels[:, :3] = IGNORED
    with torch.inference_mode():
        for left in (0, 8):
            logits = learner.head(learner.norm(F.avg_pool2d(image[..., left : left + 12], 4)))
            total[..., left : left + 12] += F.interpolate(logits, (12, 12), mode="bilinear")
            count[:, left : left + 12] += 1
        found = F.interpolate(total / count, (18, 30), mode="bilinear").argmax(1)[0, 3:].flatten()
        table = confusion_matrix(labels[0, 3:].flatten(), found, labels=range(5))
        for batch in (1, 8):
            right, union, labelled = learner.count(image, labels, 12, batch)[0].numpy()
            assert right.tolist() == table.diagonal().tolist()
            assert labelled.tolist() == table.sum(1).tolist()
            assert union.tolist() == (table.sum(0) + table.sum(1) - table.diagonal()).tolist()
        learner.head.bias[0] = torch.nan  # type: ignore[index]
        assert (learner.count(image, labels, 12, 8) == -1).all()


def test_the_loss_is_a_mean_over_all_pixels() -> None:
    """Ignored ones included, so that a batch is the mean of its parts."""
    learner = SegmentLearner(lambda images: F.avg_pool2d(images, 4), 3, 4).eval()
    images, labels = torch.rand(4, 3, 8, 8), torch.randint(0, 4, (4, 8, 8))
    labels[0, 2:] = IGNORED
    logits = F.interpolate(learner.head(learner.norm(F.avg_pool2d(images, 4))), (8, 8), mode="bilinear")
    plain = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none").mean()
    assert torch.allclose(learner((images, labels), 0)["loss"], plain)


def test_features_are_the_last_blocks_patch_tokens() -> None:
    backbone, image = create("tiny", img_size=64).eval(), torch.rand(2, 3, 64, 64)
    encode, dim = make_map_encoder(backbone, 2, 64)
    tokens = torch.cat(backbone.tokens(image, norm=True)[-2:], 2)[:, backbone.model.num_prefix_tokens :]
    assert torch.equal(encode(image).flatten(2).transpose(1, 2), tokens)
    assert encode(image).shape == (2, dim, 4, 4)


def test_a_view_moves_image_and_mask_alike() -> None:
    """Images are their masks in gray; the same key gives the same view."""
    shades = np.repeat(np.array([0, 60, 120, 180, 250], np.uint8), [1, 1, 1, 1, 252])
    split = replace(shapes().train, table=shades)
    split.read = lambda index: split.mask(index).convert("RGB")
    options = command("segment", "--size", "64", "--backbone", "tiny", "--no-distort").options
    images, seen = MaskedImages(split, partial(random_view, options=options, fill=(128, 102, 76))), set()
    for index in range(8):
        image, labels = images[0, index, 0]
        assert image.shape == (3, 64, 64)
        assert torch.equal(image, images[0, index, 0][0])
        assert not torch.equal(image, images[1, index, 0][0])
        beyond = labels == IGNORED
        assert (image[:, beyond] == torch.tensor([[128], [102], [76]])).all()
        assert ((image[0].long() - labels).abs()[~beyond] < 10).float().mean() > 0.7, "but for resampled rims"
        seen |= {bool(beyond.any())}
    assert seen == {True, False}


def test_a_run_that_was_stopped_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    with stopped_after(3):
        assert main([*WORDS, "--out", str(tmp_path / "stopped")]) != 0
    for name in ("stopped", "whole"):
        assert main([*WORDS, "--out", str(tmp_path / name)]) == 0
    assert_equal_runs(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.nightly
def test_two_ranks_follow_one_process(tmp_path: Path) -> None:
    assert main([*WORDS, "--out", str(tmp_path / "one")]) == 0
    run_by_ranks("transfer.run", [*WORDS, "--out", str(tmp_path / "two")], tmp_path / "log")
    for mine, theirs in zip(history(tmp_path / "one"), history(tmp_path / "two"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    assert one.run_key == two.run_key
    assert one.scores == pytest.approx(two.scores, abs=0.01)


def test_what_cannot_work_is_said_before_training() -> None:
    with pytest.raises(UsageError, match="--n-last-blocks 3: backbone tiny has 2"):
        check(resolve("tiny"), shapes(), smoke_options("segment", "--n-last-blocks", "3"), context())
    with pytest.raises(UsageError, match="--in-chans 4"):
        load_task("segment").check_words(resolve("tiny", in_chans=4), smoke_options("segment"))


def test_small_images_have_a_smaller_size_in_whole_patches() -> None:
    """The shapes have 96 pixels."""
    task, options = load_task("segment"), command("segment", "--backbone", "tiny").options
    for patch, size in ((16, 192), (14, 196)):
        found = task.defaults_for_data(resolve("tiny", patch=patch), shapes(), options)
        assert found["size"] == (size, "twice the shorter side of the images, 96 pixels")
    small = replace(options, size=64)
    assert task.defaults_for_data(resolve("tiny"), shapes(), small)["size"][0] == 64
    halved = replace(options, size=120)  # VOLO halves the grid of its patches of 8 pixels
    assert task.defaults_for_data(resolve("volo_tiny"), shapes(), halved)["size"][0] == 128


@pytest.mark.parametrize(("recipe", "size"), [("segment", 518), ("reid", (266, 140))])
def test_default_sizes_are_whole_patches_of_a_timm_model(recipe: str, size: int | tuple[int, int]) -> None:
    """DINOv2's patches have 14 pixels, as its name alone says; sizes that they do not divide are rejected."""
    spec, options = resolve("vit_small_patch14_dinov2"), command(recipe, "--backbone", "tiny").options
    task = load_task(recipe)
    assert task.defaults_for_backbone(spec, options, ())["size"][0] == size
    with pytest.raises(UsageError, match="use multiples of 14, the patch size of vit_small_patch14_dinov2"):
        task.check_words(spec, options)
