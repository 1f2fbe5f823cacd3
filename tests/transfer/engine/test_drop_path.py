"""Stochastic depth: two ranks drop what one process does, and the draws are those of fair coins."""

import pytest
import torch
from timm.layers import DropPath
from torch import Tensor, nn

from transfer.core.process import Ranks
from transfer.engine.dist import Draws

CPU = torch.device("cpu")


def dropped(ranks: Ranks, samples: int, crops: int = 1, key: tuple[int, ...] = (0, 1, 0)) -> Tensor:
    """What a layer in the midst of others leaves of ones [crops * samples, 2]."""
    model = nn.Sequential(DropPath(0.5), DropPath(0.25), nn.Identity())
    draws = Draws(ranks, CPU)
    draws.replace_layers(model)
    draws.begin(samples, *key)
    return model[1](torch.ones(crops * samples, 2))


@pytest.mark.parametrize("crops", [1, 2, 6])
def test_ranks_drop_what_one_process_drops(crops: int) -> None:
    whole = dropped(Ranks(), 64, crops)
    parts = [dropped(Ranks(rank, 4), 16, crops).unflatten(0, (crops, 16)) for rank in range(4)]
    assert torch.equal(torch.cat(parts, 1).flatten(0, 1), whole)
    assert whole.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert torch.equal(whole[:, 0], whole[:, 1])  # a sample is dropped as a whole


def test_draws_are_uniform_and_of_one_sample_layer_and_step() -> None:
    draws = Draws(Ranks(), CPU)
    draws.replace_layers(nn.Sequential(*[DropPath(0.1) for _ in range(24)]))
    kept = []
    for step in range(20):
        draws.begin(256, 0, step, 0)
        kept.append(torch.stack([draws.factors(layer, torch.ones(256)) for layer in range(24)]) > 0)
    rows = torch.stack(kept).flatten(0, 1).double()  # [steps * layers, samples]
    assert rows.mean().item() == pytest.approx(0.9, abs=4 * (0.09 / rows.numel()) ** 0.5)
    assert rows.T.corrcoef().fill_diagonal_(0).abs().max() < 5 / 480**0.5  # over samples
    assert rows.corrcoef().fill_diagonal_(0).abs().max() < 6 / 256**0.5  # over layers and steps
    again, other = dropped(Ranks(), 512), dropped(Ranks(), 512, key=(0, 1, 1))
    assert torch.equal(again, dropped(Ranks(), 512))
    assert not torch.equal(again, other)


def test_each_resolution_of_as_many_crops_draws_its_own() -> None:
    model = nn.Sequential(DropPath(0.5))
    draws = Draws(Ranks(), CPU)
    draws.replace_layers(model)
    draws.begin(64, 0, 1, 0)
    wide, narrow, again = (model(torch.ones(128, tokens, 2))[:, 0, 0] for tokens in (17, 5, 17))
    assert torch.equal(wide, again)  # as a block that is recomputed
    assert 0.3 < (wide == narrow).float().mean() < 0.7
