"""Ranks of true classes, in logits and in votes of neighbours, and the accuracies made of them."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor

from backbones.pretrain.accuracy import accuracies, class_columns, true_class_ranks, voted_ranks, weighted_knn
from tests.oracles.knn import class_rank, similarities, votes
from transfer.core.errors import UserError
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


@pytest.mark.parametrize("elements", [2**26, 1, 16 * 40 * 5 * 4])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_votes_are_those_of_the_plain_statement(
    elements: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backbones.pretrain.accuracy.BLOCK_ELEMENTS", elements)
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randn(count, 5, generator=generator) for count in (40, 11))
    labels = torch.randint(4, (40,), generator=generator)
    found = weighted_knn(train, labels, test, k=[1, 7, 40], temperature=temperature, classes=4, top=4)
    for k, answers in found.items():
        for feature, ranked in zip(test.double().numpy(), answers):
            totals = votes(similarities(train.double().numpy(), feature), labels.numpy(), k, temperature, 4)
            assert [class_rank(totals, label, 4) for label in ranked.tolist()] == [0, 1, 2, 3]


def test_the_earlier_of_equally_near_samples_votes_and_the_lower_of_equal_classes_wins() -> None:
    labels = torch.tensor([2] + [1] * 24 + [0] * 25)
    first = weighted_knn(torch.ones(50, 2), labels, torch.ones(3, 2), k=[1, 2, 4], temperature=1.0, classes=3, top=1)
    assert [first[k].flatten().tolist() for k in (1, 2, 4)] == [[2] * 3, [1] * 3, [1] * 3]
    # nearest is sample 1; of the three others, equally far, the first
    train = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = weighted_knn(train, torch.arange(4), torch.tensor([[1.0, 0.1]]), k=[2], temperature=1.0, classes=4, top=4)
    assert found[2].tolist() == [[1, 0, 2, 3]]


@pytest.mark.parametrize("k", [0, 5])
def test_an_impossible_number_of_neighbours_is_said(k: int) -> None:
    with pytest.raises(UserError, match=f"k = {k}: k must lie between 1 and the 4 training images"):
        weighted_knn(torch.eye(4), torch.arange(4), torch.eye(4), k=[1, k], temperature=0.07, classes=4)


@pytest.mark.parametrize(("k", "found"), [(1, [0, 5, 5]), (2, [0, 1, 5]), (3, [0, 1, 2]), (200, [0, 1, 2])])
def test_fewer_neighbours_than_five_name_as_many_classes(k: int, found: list[int]) -> None:
    """As DINO's eval_knn.py, which counts the first min(5, k)."""
    ranked = torch.tensor([[4, 0, 1, 2, 3]]).expand(3, 5)
    assert voted_ranks(ranked, torch.tensor([4, 0, 1]), k).tolist() == found


@pytest.mark.parametrize("temperature", [1e-9, 1e-5, 1e-3, 0.01])
def test_votes_do_not_underflow_at_any_temperature(temperature: float) -> None:
    """At these temperatures the nearest sample outvotes all others, however far it is."""
    generator = torch.Generator().manual_seed(3)
    train, test = (torch.randn(count, 5, generator=generator, dtype=torch.float64) for count in (40, 60))
    labels = torch.randint(8, (40,), generator=generator)
    found = weighted_knn(train, labels, test, k=[9], temperature=temperature, classes=8, top=8)[9]
    cosine = (test / test.norm(dim=1, keepdim=True)) @ (train / train.norm(dim=1, keepdim=True)).T
    for row, order in zip(cosine, found):
        nearest = row.argsort(descending=True)[:9]
        weights: dict[int, float] = {}
        for index in nearest.tolist():
            exponent, label = row[index].item() / temperature, int(labels[index])
            weights[label] = float(np.logaddexp(weights.get(label, -np.inf), exponent))
        assert order[: len(weights)].tolist() == sorted(weights, key=lambda label: -weights[label])


@pytest.mark.parametrize("clusters", [1, 2])
@pytest.mark.parametrize("lost", [1e-3, 1e-5, 1e-7])
def test_nearly_parallel_features_find_the_neighbours_of_float64(lost: float, clusters: int) -> None:
    generator = torch.Generator().manual_seed(4)
    common = torch.randn(clusters, 64, generator=generator, dtype=torch.float64)
    noise = [torch.randn(count, 64, generator=generator, dtype=torch.float64) for count in (300, 50)]
    train, test = ((common[torch.arange(len(own)) % clusters] + lost**0.5 * own).float() for own in noise)
    found = weighted_knn(train, torch.arange(300), test, k=[5], temperature=0.07, classes=300)[5]
    exact = [rows.double() / rows.double().norm(dim=1, keepdim=True) for rows in (test, train)]
    assert torch.equal(found, (exact[0] @ exact[1].T).topk(5).indices)
