import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from backbones.backbone import create
from backbones.errors import UsageError, UserError
from backbones.runtime.seeding import seed_torch
from backbones.spec import resolve
from tasks.probing.draws import spread
from tasks.task import load_task
from tests.support import context
from tests.tasks.support import digits, smoke_options, without

WORDS = ["--eval-precision", "fp32"]


def run(tmp_path, *words: str, data=None, spec=None, precision="fp32"):
    """Scores, outcomes and context of a run with smoke options on the digits."""
    task, options = load_task("fewshot"), smoke_options("fewshot", *WORDS, *words)
    here = context(features=tmp_path / "features", eval_precision=precision)
    data, spec = data or digits(), spec or resolve("tiny")
    task.check(spec, data, options, here)
    scores, outcomes = task.run(spec, data, options, here)
    if scores:
        assert task.rescore(outcomes) == scores
        assert not task.contradictions(scores)
        assert outcomes["sample"].tolist() == list(data.val.names)
        assert len(outcomes["cluster"]) == len(data.val)
    return scores, outcomes, here


def pixels_of(split) -> np.ndarray:
    return np.stack([np.asarray(split.read(index)) for index in range(len(split))])


def plain_accuracy(train, labels, test, truth, l2: float) -> float:
    """big_vision's probe in numpy, as its text says it, with the primal form alone."""
    mean, std = train.mean(0), train.std(0) + 1e-5
    x, z = (np.hstack([(f - mean) / std, np.full((len(f), 1), 100.0)]) for f in (train, test))
    y = np.where(labels[:, None] == np.arange(10), 1.0, -1.0)
    weights = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)
    return float((np.argmax(z @ weights, axis=1) == truth).mean())


def test_scores_are_those_of_the_plain_protocol(tmp_path) -> None:
    data = digits(30)
    scores, outcomes, here = run(tmp_path, "--support", "bigvision", "--draws", "2", "--shots", "1", "8", data=data)
    seed_torch(0)
    backbone = create("tiny", img_size=32).eval()
    with torch.no_grad():
        train, test = (
            backbone.pooled(torch.from_numpy(pixels_of(split)).permute(0, 3, 1, 2).float() / 255).double().numpy()
            for split in (data.train, data.val)
        )
    for shots in (1, 8):
        accuracies = []
        for draw in (0, 1):
            generator = np.random.default_rng(draw)
            chosen = np.concatenate(
                [generator.permutation(np.where(data.train.labels == c)[0])[:shots] for c in range(10)]
            )
            accuracies.append(plain_accuracy(train[chosen], data.train.labels[chosen], test, data.val.labels, 1024.0))
        assert outcomes[f"correct_{shots}shot"].mean(0) == pytest.approx(accuracies)
        assert scores[f"accuracy_{shots}shot"] == pytest.approx(np.mean(accuracies))
        details = here.details[f"accuracy_{shots}shot"]
        assert details == spread(accuracies) | {"strengths": [1024.0, 1024.0]}


def test_probes_beat_chance_and_more_shots_are_better(tmp_path) -> None:
    scores, _, here = run(tmp_path)
    assert list(scores) == ["accuracy_1shot", "accuracy_5shot", "accuracy_10shot"]
    assert 0.2 < scores["accuracy_1shot"] < scores["accuracy_10shot"]
    assert scores["accuracy_10shot"] > 0.5
    assert here.details["support"]["rule"] == "digest"
    assert here.details["features"]["computed"] > 0
    assert here.details["features"]["channels"] == 64
    assert here.cost.eval_seconds > 0
    for words in (["--probe", "logistic"], ["--probe", "knn", "--k", "3"], ["--block", "0"], ["--view", "bicubic"]):
        assert run(tmp_path, *words)[0]["accuracy_10shot"] > 0.4, words


def test_a_second_probe_computes_no_features(tmp_path) -> None:
    run(tmp_path)
    *_, here = run(tmp_path, "--probe", "knn")
    assert here.details["features"]["computed"] == 0
    assert here.details["features"]["images_per_second"] is None


def test_a_strength_is_chosen_without_the_test_images(tmp_path) -> None:
    data = digits(30)
    words = ["--l2", "0.01", "1", "100", "10000", "--select", "4", "--shots", "5"]
    _, _, here = run(tmp_path, *words, data=data)
    shuffled = replace(data.val, labels=np.roll(data.val.labels, 7))
    _, _, other = run(tmp_path, *words, data=replace(data, val=shuffled))
    chosen = here.details["accuracy_5shot"]["strengths"]
    assert set(chosen) <= {0.01, 1.0, 100.0, 10000.0}
    assert other.details["accuracy_5shot"]["strengths"] == chosen
    assert other.details["accuracy_5shot"]["draws"] != here.details["accuracy_5shot"]["draws"]


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        (lambda features: features * 0 + 3, "collapsed", "degenerate features.*same for all test images"),
        (lambda features: features * 1e-9 + 1, "collapsed", "degenerate features"),
        (lambda features: features[:, :0], "collapsed", "degenerate features: they have no channels"),
        (lambda features: features / 0, "nonfinite", "features of the train images: not finite for"),
    ],
)
def test_features_that_say_nothing_give_no_score(tmp_path, monkeypatch, change, status: str, reason: str) -> None:
    pooled = type(create("tiny", img_size=32)).pooled
    monkeypatch.setattr("backbones.backbone.Backbone.pooled", lambda self, images: change(pooled(self, images)))
    scores, outcomes, here = run(tmp_path)
    assert (scores, outcomes) == ({}, {})
    assert here.outcome.status == status
    assert re.search(reason, here.outcome.reason)


def test_constant_channels_are_counted(tmp_path, monkeypatch) -> None:
    pooled = type(create("tiny", img_size=32)).pooled

    def some_constant(self, images):
        features = pooled(self, images)
        features[:, :5] = 2.0
        return features

    monkeypatch.setattr("backbones.backbone.Backbone.pooled", some_constant)
    scores, _, here = run(tmp_path)
    assert here.details["features"]["constant_channels"] == 5
    assert scores["accuracy_10shot"] > 0.3


def test_fits_that_do_not_converge_are_said_once(tmp_path, monkeypatch, capsys) -> None:
    words = ["--probe", "logistic", "--shots", "1", "5", "--draws", "2"]
    assert run(tmp_path, *words)[2].notes == []
    monkeypatch.setattr("tasks.probes.ITERATIONS", 1)
    said = "of the fits of --probe logistic did not converge; a larger --logistic-l2 helps"
    assert run(tmp_path, *words)[2].notes == [f"toy_digits: 4 {said}"]
    assert capsys.readouterr().err.count("did not converge") == 1
    several = ["--logistic-l2", "1", "10", "--select", "2"]
    assert run(tmp_path, *words, *several)[2].notes == [f"toy_digits: 12 {said}"]  # two to choose, and the chosen one
    assert run(tmp_path)[2].notes == []


def test_scores_of_any_number_of_shots_have_bounds() -> None:
    task = load_task("fewshot")
    assert task.contradictions({"accuracy_3shot": 0.5, "accuracy_10shot": 1.0}) == []
    assert task.contradictions({}) == []
    for wrong in (1.5, -0.1, float("nan")):
        assert task.contradictions({"accuracy_3shot": wrong}) == [f"accuracy_3shot = {wrong} is outside [0, 1]"]


def test_a_missing_split_is_named() -> None:
    data = digits()
    task = load_task("fewshot")
    for split, word in (("train", "no training split"), ("val", "no validation split")):
        missing = without(data, split)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tasks.labelled_images.open_classification", lambda *_, missing=missing, **__: missing)
            with pytest.raises(UserError, match=f"toy_digits: there is {word}"):
                task.open(None, smoke_options("fewshot"), root=None, subset=None, skip_unreadable=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shots", "0"], "--shots"),
        (["--shots", "5", "5"], "--shots"),
        (["--draws", "0"], "--draws"),
        (["--l2", "0"], "--l2"),
        (["--l2", "-1"], "--l2"),
        (["--k", "0", "--probe", "knn"], "--k"),
        (["--k", "3"], "no effect with --probe ridge"),
        (["--l2", "3", "--probe", "logistic"], "no effect with --probe logistic"),
        (["--temperature", "0", "--probe", "knn"], "--temperature"),
        (["--resize", "16"], "--resize"),
    ],
)
def test_words_that_cannot_work(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        smoke_options("fewshot", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--block", "2"], "tiny has 2 blocks"),
        (["--block", "-3"], "tiny has 2 blocks"),
        (["--size", "40", "--resize", "40"], "does not divide"),
        (["--l2", "1", "2", "--shots", "400"], "none remain to choose"),
    ],
)
def test_what_cannot_work_is_known_before_the_run(tmp_path, words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(tmp_path, *words)
    assert not (tmp_path / "features").exists()


def test_nearly_constant_features_of_half_precision_are_constant(tmp_path, monkeypatch) -> None:
    pooled = type(create("tiny", img_size=32)).pooled
    monkeypatch.setattr(
        "backbones.backbone.Backbone.pooled", lambda self, images: 1 + 1e-4 * pooled(self, images).float()
    )
    assert run(tmp_path, precision="bf16")[2].outcome.status == "collapsed"
    assert run(tmp_path)[0]["accuracy_10shot"] > 0.5


def test_the_order_of_numbers_changes_nothing() -> None:
    one, two = smoke_options("fewshot", "--shots", "10", "1"), smoke_options("fewshot", "--shots", "1", "10")
    assert one == two
    assert smoke_options("fewshot", "--resize", "None") == smoke_options("fewshot", "--resize", "36")


def test_the_run_knows_the_contents_of_the_images() -> None:
    task, data = load_task("fewshot"), digits(4)
    relabelled = replace(data, val=replace(data.val, labels=np.roll(data.val.labels, 1)))
    options = smoke_options("fewshot")
    assert task.content(data, options) != task.content(relabelled, options)
