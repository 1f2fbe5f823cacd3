from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from backbones.backbone import create
from tests.oracles.probes import ridge
from tests.tasks.support import digits, images_of, run_task
from transfer.core.errors import UserError
from transfer.core.seeding import seed_torch


def run(tmp_path, *words: str, data=None):
    """Scores, outcomes and context of a run with smoke options on the digits."""
    given = {"features": tmp_path / "features"}
    return run_task("fewshot", data or digits(), "--eval-precision", "fp32", *words, **given)


def test_scores_are_those_of_the_plain_protocol(tmp_path) -> None:
    data = digits(30)
    data = replace(data, val=data.val.select(np.arange(6, len(data.val))))  # fewer of the first class
    scores, outcomes, here = run(tmp_path, "--support", "bigvision", "--draws", "2", "--shots", "1", "8", data=data)
    seed_torch(0)
    backbone = create("tiny", img_size=32).eval()
    with torch.no_grad():
        train, test = (backbone.pooled(images_of(split)).double().numpy() for split in (data.train, data.val))
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
    _, _, here = run(tmp_path, *words, data=data)
    shuffled = replace(data.val, labels=np.roll(data.val.labels, 7))
    _, _, other = run(tmp_path, *words, data=replace(data, val=shuffled))
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
        run(tmp_path, *words)
    assert not (tmp_path / "features").exists()
