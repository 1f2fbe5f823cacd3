import numpy as np
import pytest
import torch

from backbones.backbone import create
from tests.oracles.knn import class_rank, similarities, votes
from tests.tasks.support import digits, images_of, run_task
from transfer.core.errors import UserError
from transfer.core.seeding import seed_torch


def test_scores_are_those_of_the_plain_definition() -> None:
    data = digits(12)
    scores, _, _ = run_task("knn", data, "--k", "7", "--other-k", "1", "30", "--temperature", "0.1")
    seed_torch(0)
    backbone = create("tiny", img_size=32).eval()
    with torch.no_grad():
        train, val = (backbone.pooled(images_of(split)).double().numpy() for split in (data.train, data.val))
    for k, name in ((7, "top1"), (1, "top1_k1"), (30, "top1_k30")):
        totals = [votes(similarities(train, image), data.train.labels, k, 0.1, 10) for image in val]
        ranks = np.array([class_rank(one, label, 5) for one, label in zip(totals, data.val.labels)])
        assert scores[name] == pytest.approx((ranks == 0).mean())
        if k == 7:
            assert scores["top5"] == pytest.approx((ranks < 5).mean())


def test_more_neighbours_than_images() -> None:
    with pytest.raises(UserError, match=r"40 training images.*--other-k"):
        run_task("knn", digits(4))
