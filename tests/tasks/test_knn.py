import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from backbones.backbone import create
from backbones.checkpoints.exports import export
from backbones.errors import UserError
from backbones.runtime.seeding import seed_torch
from backbones.spec import resolve
from tests.tasks.support import digits, run_task


def features_of(split, backbone) -> np.ndarray:
    """L2-normalised features; the images have the crop's size already."""
    pixels = [np.asarray(split.read(index)) for index in range(len(split))]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        features = backbone.eval().pooled(images).double().numpy()
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def votes(train, labels, image, k, temperature):
    """Classes by falling votes, in words of the paper, one image at a time."""
    similarity = train @ image
    nearest = sorted(range(len(train)), key=lambda index: -similarity[index])[:k]
    weights = defaultdict(float)
    for index in nearest:
        weights[labels[index]] += math.exp(similarity[index] / temperature)
    return sorted(weights, key=lambda label: -weights[label])


def test_scores_are_those_of_the_plain_definition() -> None:
    data = digits(12)
    scores, _, _ = run_task("knn", data, "--k", "7", "--other-k", "1", "30", "--temperature", "0.1")
    seed_torch(0)
    backbone = create("tiny", img_size=32)
    train, val = (features_of(split, backbone) for split in (data.train, data.val))
    for k, name in ((7, "top1"), (1, "top1_k1"), (30, "top1_k30")):
        ranked = [votes(train, data.train.labels, image, k, 0.1) for image in val]
        hits = [order[0] == label for order, label in zip(ranked, data.val.labels)]
        assert scores[name] == pytest.approx(np.mean(hits))
        if k == 7:
            among = [label in order[:5] for order, label in zip(ranked, data.val.labels)]
            # with fewer than five classes among the neighbours, classes without a vote fill the rest in order of labels
            filled = [
                among[n] or label in sorted({*range(10)} - {*ranked[n]})[: max(5 - len(ranked[n]), 0)]
                for n, label in enumerate(data.val.labels)
            ]
            assert scores["top5"] == pytest.approx(np.mean(filled))


def test_more_neighbours_than_images() -> None:
    with pytest.raises(UserError, match=r"40 training images.*--other-k"):
        run_task("knn", digits(4))


def test_broken_weights_are_an_outcome(tmp_path: Path) -> None:
    backbone = create("tiny", img_size=32)
    torch.nn.init.constant_(backbone.model.norm.weight, torch.nan)
    export(backbone, tmp_path / "broken")
    scores, outcomes, here = run_task("knn", digits(30), spec=resolve("tiny", weights=str(tmp_path / "broken")))
    assert (scores, outcomes) == ({}, {})
    assert here.outcome.status == "nonfinite"
    assert "features of the training split: not finite for " in here.outcome.reason
    assert "299 more of 300 images" in here.outcome.reason
