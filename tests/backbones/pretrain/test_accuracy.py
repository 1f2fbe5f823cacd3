"""Ranks of true classes and the accuracies made of them."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor

from backbones.pretrain.accuracy import accuracies, class_columns, true_class_ranks
from transfer.task import Task


def outcomes(ranks: Tensor) -> dict[str, np.ndarray]:
    return {"rank": ranks[:, 0].numpy(), "ties": ranks[:, 1].numpy()}


@pytest.mark.parametrize("row", [(3, 6, 0, 2, 5, 1, 4), (1, 1, 0, 0, 0, 0, 0), (2, 1, 1, 1, 1, 1, 0), (3,) * 7])
def test_ties_count_by_expectation_over_their_orders(row: tuple[float, ...]) -> None:
    logits = torch.tensor([row]).float()
    for label in range(len(row)):
        found = accuracies(outcomes(true_class_ranks(logits, torch.tensor([label]))))
        for k in (1, 5):
            orders = [
                sorted(range(len(row)), key=lambda c: (-row[c], order[c]))[:k]
                for order in itertools.islice(itertools.permutations(range(len(row))), 0, None, 7)
            ]
            shares = [label in best for best in orders]
            assert found[f"top{k}"] == pytest.approx(sum(shares) / len(shares), abs=0.02)


def test_ranks_among_some_classes_only_and_the_missing_one_is_never_right() -> None:
    logits = torch.tensor([[9.0, 1.0, 2.0, 8.0], [9.0, 1.0, 2.0, 8.0], [0.0, 0.0, 0.0, 0.0]])
    columns, missing = class_columns(["other", "a", "b", "another"], ["a", "b", "teddy"])
    assert columns.tolist() == [1, 2, -1]
    assert missing == ["teddy"]
    ranks = true_class_ranks(logits, torch.tensor([1, 0, 2]), columns)
    assert ranks[:2].tolist() == [[0, 0], [1, 0]]
    assert accuracies(outcomes(ranks[2:])) == {"top1": 0.0, "top5": 0.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_have_no_rank(value: float) -> None:
    logits = torch.zeros(2, 4)
    logits[1, 2] = value
    assert true_class_ranks(logits, torch.tensor([0, 0])).tolist() == [[0, 3], [-1, -1]]
    columns = torch.tensor([2, 0, -1, 1])
    assert true_class_ranks(logits, torch.tensor([1, 1]), columns).tolist() == [[0, 2], [-1, -1]]


@pytest.mark.filterwarnings("ignore:y_pred contains classes")
@pytest.mark.parametrize("seed", range(5))
def test_the_macro_average_is_scikit_learns_balanced_accuracy(seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels = draw.choice(6, 40, p=[0.6, 0.2, 0.1, 0, 0.05, 0.05])  # a class does not occur, others are rare
    logits = torch.from_numpy(draw.normal(size=(40, 6))) + 1.5 * torch.eye(6)[labels]
    kept = outcomes(true_class_ranks(logits, torch.from_numpy(labels)))
    assert "macro_top1" not in accuracies(kept), "outcomes of earlier versions give their scores"
    kept["label"] = labels
    score = accuracies(kept)["macro_top1"]
    assert score == pytest.approx(balanced_accuracy_score(labels, logits.argmax(1)))
    values = Task().per_sample("macro_top1", kept)
    assert values is not None
    assert values.mean() == pytest.approx(score, abs=1e-12)
