"""Tasks on the features of a frozen backbone, and features that are the same for all images, or not finite."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from backbones.backbone import create
from tests.oracles.knn import class_rank, similarities, votes
from tests.oracles.probes import ridge
from tests.runs import record
from tests.tasks.support import digits, images_of, run_task
from transfer.core.errors import UserError
from transfer.core.seeding import seed_torch
from transfer.data.classification import ClassificationData
from transfer.engine.extract import NotVaried, check_varied
from transfer.run import main


def plain_features(data: ClassificationData) -> list[np.ndarray]:
    """Of the training and of the validation images."""
    seed_torch(0)
    backbone = create("tiny", img_size=32).eval()
    with torch.no_grad():
        return [backbone.pooled(images_of(split)).double().numpy() for split in (data.train, data.val)]


def test_scores_are_those_of_the_plain_definition() -> None:
    data = digits(12)
    scores, _, _ = run_task("knn", data, "--k", "7", "--other-k", "1", "30", "--temperature", "0.1")
    train, val = plain_features(data)
    for k, name in ((7, "top1"), (1, "top1_k1"), (30, "top1_k30")):
        totals = [votes(similarities(train, image), data.train.labels, k, 0.1, 10) for image in val]
        ranks = np.array([class_rank(one, label, 5) for one, label in zip(totals, data.val.labels)])
        assert scores[name] == pytest.approx((ranks == 0).mean())
        if k == 7:
            assert scores["top5"] == pytest.approx((ranks < 5).mean())


def test_more_neighbours_than_images() -> None:
    with pytest.raises(UserError, match=r"40 training images.*--other-k"):
        run_task("knn", digits(4))


def fewshot(tmp_path, *words: str, data=None):
    """Scores, outcomes and context of a run with smoke options on the digits."""
    given = {"features": tmp_path / "features"}
    return run_task("fewshot", data or digits(), "--eval-precision", "fp32", *words, **given)


def test_scores_are_those_of_the_plain_protocol(tmp_path) -> None:
    data = digits(30)
    data = replace(data, val=data.val.select(np.arange(6, len(data.val))))  # fewer of the first class
    scores, outcomes, here = fewshot(tmp_path, "--support", "bigvision", "--draws", "2", "--shots", "1", "8", data=data)
    train, test = plain_features(data)
    for shots in (1, 8):
        accuracies, of_classes = [], []
        for draw in (0, 1):
            generator = np.random.default_rng(draw)
            places = [np.where(data.train.labels == c)[0] for c in range(10)]
            chosen = np.concatenate([generator.permutation(own)[:shots] for own in places])
            probe = ridge(train[chosen], data.train.labels[chosen], 1024.0, 10)
            found = np.array([probe.outputs(row).argmax() for row in test])
            accuracies.append(np.mean(found == data.val.labels))
            of_classes.append(balanced_accuracy_score(data.val.labels, found))
        assert outcomes[f"correct_{shots}shot"].mean(0) == pytest.approx(accuracies)
        assert scores[f"accuracy_{shots}shot"] == pytest.approx(np.mean(accuracies))
        assert scores[f"macro_accuracy_{shots}shot"] == pytest.approx(np.mean(of_classes))
        details = here.details[f"accuracy_{shots}shot"]
        assert details["strengths"] == [1024.0, 1024.0]
        assert details["draws"] == list(accuracies)
        error = abs(accuracies[0] - accuracies[1]) / 2  # of the mean of two
        assert (details["standard_error"], details["variance"]) == pytest.approx((error, 2 * error**2))


def test_a_strength_is_chosen_without_the_test_images(tmp_path) -> None:
    data = digits(30)
    words = ["--l2", "0.01", "1", "100", "10000", "--val-shots", "4", "--shots", "5"]
    _, _, here = fewshot(tmp_path, *words, data=data)
    shuffled = replace(data.val, labels=np.roll(data.val.labels, 7))
    _, _, other = fewshot(tmp_path, *words, data=replace(data, val=shuffled))
    chosen = here.details["accuracy_5shot"]["strengths"]
    assert set(chosen) <= {0.01, 1.0, 100.0, 10000.0}
    assert other.details["accuracy_5shot"]["strengths"] == chosen
    assert other.details["accuracy_5shot"]["draws"] != here.details["accuracy_5shot"]["draws"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--block", "2"], "tiny has 2 blocks"), (["--l2", "1", "2", "--shots", "400"], "none remain to choose")],
)
def test_what_cannot_work_is_known_before_the_run(tmp_path, words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        fewshot(tmp_path, *words)
    assert not (tmp_path / "features").exists()


STEM = """
from torch import nn

class Stem(nn.Conv2d):
    def __init__(self, dim, patch):
        super().__init__(3, dim, patch, patch)

    def forward(self, x):
        return FACTOR * super().forward(x)
"""

NAN = "(float('nan') if len(x) > 2 else 1)"  # in larger batches than the check before a run has


@pytest.mark.parametrize(
    ("words", "factor", "status", "reason"),
    [
        (["reid", "--epochs", "0"], "0", "collapsed", "every query is equally far"),
        (["knn"], "0", "collapsed", "the same for all training images"),
        (["fewshot", "--dataset", "toy_dtd"], "0", "collapsed", "the same for all test images"),
        (["knn", "--subset", "30"], NAN, "nonfinite", "299 more of 300 images"),
        (["fewshot", "--dataset", "toy_digits"], NAN, "nonfinite", "features of the train images: not finite for"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_tells_no_images_apart_has_no_score(
    words: list[str], factor: str, status: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "stem.py").write_text(STEM.replace("FACTOR", factor))
    stem = ["--backbone", "tiny", "--stem", f"{tmp_path}/stem.py:Stem"]
    out = ["--smoke", "--workers", "0", "--out", str(tmp_path / "runs"), "--feature-cache", str(tmp_path / "features")]
    assert main([*words, *stem, *out]) == 3
    kept = record(tmp_path / "runs")
    assert kept.outcome["status"] == status
    assert reason in kept.outcome["reason"]
    assert kept.scores == {}


def test_rounding_is_no_variation_and_one_image_no_proof() -> None:
    features = torch.rand(1, 8).repeat(5, 1)
    check_varied(features[:1], "fp32", "test")
    check_varied(features + torch.eye(5, 8) * 1e-3, "fp32", "test")
    for near in (features, features * (1 + 1e-7 * torch.rand(5, 1))):
        with pytest.raises(NotVaried, match="the same for all test images"):
            check_varied(near, "fp32", "test")
