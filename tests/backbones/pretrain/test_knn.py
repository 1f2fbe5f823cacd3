import numpy as np
import pytest
import torch

from backbones.pretrain.accuracy import voted_ranks, weighted_knn
from tests.oracles.knn import class_rank, similarities, votes
from transfer.core.errors import UserError


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
