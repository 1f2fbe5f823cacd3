"""Tasks on the features of a frozen backbone, their probes, and features that are all the same, or not finite."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from backbones.backbone import create
from tasks.probes import LeastSquares, Logistic, Neighbours, best_strength, ridge, standardise
from tests.backbones.support import users_file
from tests.oracles.knn import class_rank, similarities, votes
from tests.oracles.probes import ridge as plain_ridge
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
            probe = plain_ridge(train[chosen], data.train.labels[chosen], 1024.0, 10)
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


@pytest.mark.parametrize(
    ("words", "part", "status", "reason"),
    [
        (["reid", "--epochs", "0"], "Dead", "collapsed", "every query is equally far"),
        (["knn"], "Dead", "collapsed", "the same for all training images"),
        (["fewshot", "--dataset", "toy_dtd"], "Dead", "collapsed", "the same for all test images"),
        (["knn", "--subset", "30"], "Breaks", "nonfinite", "299 more of 300 images"),
        (["fewshot", "--dataset", "toy_digits"], "Breaks", "nonfinite", "of the train images: not finite for"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_tells_no_images_apart_has_no_score(words, part, status, reason, tmp_path) -> None:
    """One stem breaks in larger batches than the check before a run has."""
    stem = ["--backbone", "tiny", "--stem", f"{users_file(tmp_path)}:{part}"]
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


def blobs(per_class: int, classes: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that overlap, some channels far from zero, some small: float32 as features are."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(classes, dim))
    labels = np.arange(per_class * classes) % classes
    features = (0.5 * centres[labels] + random.normal(size=(len(labels), dim))) * np.geomspace(0.01, 10, dim) + 3
    return torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels)


@pytest.mark.parametrize("per_class", [1, 10, 30])
@pytest.mark.parametrize("dim", [1, 48, 200])
@pytest.mark.parametrize("l2", [1e-2, 1024.0])
def test_ridge_is_the_plain_formula_and_predictions_its_highest_output(per_class: int, dim: int, l2: float) -> None:
    features, labels = blobs(per_class, 5, dim)
    weights = ridge(features.numpy(), labels.numpy(), l2=l2, classes=5)
    stated = plain_ridge(features.double().numpy(), labels.numpy(), l2, 5)
    assert weights.dtype == torch.float64
    assert weights.shape == (dim + 1, 5)
    test, _ = blobs(240, 5, dim, seed=1)  # more than are predicted at a time
    x = np.hstack([(test.double().numpy() - stated.mean) / stated.std, np.full((len(test), 1), 100.0)])
    expected = [stated.outputs(row) for row in test.double().numpy()]
    np.testing.assert_allclose(x @ weights.numpy(), expected, atol=1e-9, rtol=1e-9)
    assert LeastSquares(features, labels, 5).predict(test, l2).tolist() == np.argmax(expected, 1).tolist()


@pytest.mark.parametrize("l2", [0.0, -1.0])
def test_ridge_refuses_what_has_no_meaning(l2: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        ridge(torch.rand(2, 3), torch.tensor([0, 1]), l2=l2, classes=2)


@pytest.mark.parametrize("l2", [0.1, 1.0, 30.0])
def test_logistic_is_scikit_learns(l2: float) -> None:
    features, labels = blobs(8, 6, 30)
    test, _ = blobs(50, 6, 30, seed=1)
    scaled, scaled_test = (rows.numpy() for rows in standardise(features, test))
    model = LogisticRegression(C=1 / l2, max_iter=1000).fit(scaled, labels.numpy())
    probe = Logistic(features, labels, 6)
    assert np.array_equal(probe.predict(test, l2), model.predict(scaled_test))
    assert not probe.unconverged


def test_fits_that_do_not_converge_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.probes.ITERATIONS", 1)
    features, labels = blobs(8, 6, 30)
    probes = (Logistic(features, labels, 6), LeastSquares(features, labels, 6))
    for probe in (*probes, Neighbours(features, labels, 6, temperature=0.07)):
        assert probe.unconverged == 0
        probe.predict(features, 1.0)
        probe.predict(features, 2.0)
        assert probe.unconverged == (2 if isinstance(probe, Logistic) else 0)


def test_neighbours_take_all_where_there_are_fewer() -> None:
    features, labels = torch.eye(3), torch.tensor([2, 0, 1])
    probe = Neighbours(features, labels, 3, temperature=0.07)
    test = torch.tensor([[0.1, 1.0, 0.0], [0.0, 0.3, 1.0]])
    assert probe.predict(test, 50).tolist() == probe.predict(test, 1).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("right", "chosen"),
    [({1: 1, 2: 3, 4: 2}, 2), ({4: 3, 2: 3, 1: 3}, 2), ({1: 3, 2: 3, 4: 0}, 1), ({8: 3, 1: 0, 2: 3, 4: 3, 16: 3}, 4)],
)
def test_the_middle_of_the_best_strengths_is_taken(right: dict[float, int], chosen: float) -> None:
    """Of a probe that gets as many of four samples right as a table says."""
    probe = SimpleNamespace(predict=lambda _, strength: (torch.arange(4) >= right[strength]).long())
    assert best_strength(probe, torch.rand(4, 1), torch.zeros(4).long(), list(right)) == chosen
