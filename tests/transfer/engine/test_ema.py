"""The moving average of weights against the recurrence, and what it leaves alone."""

import torch
from torch import nn

from backbones.pretrain.supervised.training import WeightAverage


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_it_follows_the_recurrence_over_parameters_and_statistics() -> None:
    trained = model()
    average = WeightAverage(trained, 0.9)
    expected = {name: value.clone() for name, value in trained.state_dict().items()}
    for step in range(3):
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(torch.randn_like(parameter))
        trained(torch.randn(5, 3) + step)
        average.update(trained)
        for name, value in trained.state_dict().items():
            expected[name] = 0.9 * expected[name] + 0.1 * value if value.is_floating_point() else value.clone()
    for name, value in average.module.state_dict().items():
        assert torch.allclose(value, expected[name], atol=1e-6), name
    assert average.module.state_dict()["1.num_batches_tracked"] == 3


def test_it_neither_trains_nor_changes_the_model() -> None:
    trained = model()
    average = WeightAverage(trained, 0.5)
    average.train()
    assert not any(module.training for module in average.modules())
    assert not any(parameter.requires_grad for parameter in average.parameters())
    before = [value.clone() for value in trained.state_dict().values()]
    with torch.no_grad():
        average.module[0].weight.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(before, trained.state_dict().values()))
    rows = torch.randn(2, 3)
    assert torch.equal(average(rows), average.module(rows))


def test_a_mask_of_infinities_stays() -> None:
    trained = nn.Linear(2, 2)
    trained.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    average = WeightAverage(trained, 0.5)
    for _ in range(2):
        average.update(trained)
    assert torch.equal(average.module.mask, trained.mask)
