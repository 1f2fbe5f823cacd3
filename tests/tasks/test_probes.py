import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tasks.probes import LeastSquares, Logistic, Neighbours, best_strength, ridge, standardise
from tests.oracles.probes import ridge as plain_ridge


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


@pytest.mark.parametrize(("labels", "l2"), [([0, 4], 1.0), ([-1, 0], 1.0), ([0], 1.0), ([0, 1], 0.0), ([0, 1], -1.0)])
def test_ridge_refuses_what_has_no_meaning(labels: list[int], l2: float) -> None:
    with pytest.raises(ValueError, match=r"labels|l2"):
        ridge(torch.rand(2, 3), torch.tensor(labels), l2=l2, classes=2)


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


class Table:
    """A probe that gets as many of four samples right as a table says."""

    def __init__(self, right: dict[float, int]) -> None:
        self.right = right

    def predict(self, features: torch.Tensor, strength: float) -> torch.Tensor:
        return (torch.arange(4) >= self.right[strength]).long()


@pytest.mark.parametrize(
    ("right", "chosen"),
    [({1: 1, 2: 3, 4: 2}, 2), ({4: 3, 2: 3, 1: 3}, 2), ({1: 3, 2: 3, 4: 0}, 1), ({8: 3, 1: 0, 2: 3, 4: 3, 16: 3}, 4)],
)
def test_the_middle_of_the_best_strengths_is_taken(right: dict[float, int], chosen: float) -> None:
    assert best_strength(Table(right), torch.rand(4, 1), torch.zeros(4).long(), list(right)) == chosen


def test_logistic_of_one_class() -> None:
    assert Logistic(torch.rand(3, 2), torch.full((3,), 4), 6).predict(torch.rand(2, 2), 1.0).tolist() == [4, 4]
