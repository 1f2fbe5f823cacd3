"""Position embeddings on other grids."""

import math

import pytest
import timm
import torch

import backbones.vit  # noqa: F401
from backbones.positions import fit_positions, sincos2d


def vit(size, pool="cls"):
    return timm.create_model("vit_tiny", img_size=size, pool=pool, num_classes=0)


def test_sincos_equals_the_formula():
    table = sincos2d(2, 3, 8)
    for row in range(2):
        for column in range(3):
            angles = [1 / 10000 ** (i / (8 / 4 - 1)) for i in range(2)]
            expected = [f(position * a) for position in (column, row) for f in (math.sin, math.cos) for a in angles]
            torch.testing.assert_close(table[3 * row + column], torch.tensor(expected))


def test_the_same_grid_is_left_alone():
    state = {"cls_token": torch.zeros(1, 1, 64), "pos_embed": torch.randn(1, 1 + 8, 64)}
    assert torch.equal(fit_positions(state, vit((64, 32)), (4, 2))["pos_embed"], state["pos_embed"])


def test_a_constant_stays_constant_and_the_class_token_is_copied():
    positions = torch.cat([torch.full((1, 1, 64), 5.0), torch.full((1, 196, 64), 2.0)], dim=1)
    found = fit_positions({"cls_token": torch.zeros(1), "pos_embed": positions}, vit((256, 128)), None)["pos_embed"]
    assert found.shape == (1, 1 + 16 * 8, 64)
    assert torch.equal(found[:, 0], positions[:, 0])
    torch.testing.assert_close(found[:, 1:], torch.full((1, 128, 64), 2.0))


@pytest.mark.parametrize(("tokens", "ramp"), [(64, (8, 8)), (128, (16, 8))])
def test_rows_stay_rows(tokens, ramp):
    """A ramp over the rows of the guessed grid is a ramp over the rows of the new one."""
    height, width = ramp
    rows = torch.arange(height).repeat_interleave(width).view(1, tokens, 1).expand(1, tokens, 64) / height
    found = fit_positions({"cls_token": torch.zeros(1), "pos_embed": torch.cat([rows[:, :1], rows], 1)}, vit(64), None)
    grid = found["pos_embed"][0, 1:, 0].view(4, 4)
    assert (grid[1:] > grid[:-1] + 0.1).all()
    torch.testing.assert_close(grid[:, 0], grid[:, 3])


def test_a_class_token_on_one_side_only():
    positions = torch.randn(1, 16, 64)
    added = fit_positions({"pos_embed": positions}, vit(64), None)["pos_embed"]
    assert torch.equal(added, torch.cat([torch.zeros(1, 1, 64), positions], dim=1))
    with_class = {"cls_token": torch.zeros(1, 1, 64), "pos_embed": added}
    assert torch.equal(fit_positions(with_class, vit(64, "gap"), None)["pos_embed"], positions)


@pytest.mark.parametrize(("there", "here"), [(0, 1), (1, 0)])
def test_a_class_token_with_a_position_on_one_side_only(there, here):
    model = timm.create_model("vit_tiny", img_size=64, class_position=bool(here))
    positions = torch.randn(1, there + 16, 64)
    found = fit_positions({"cls_token": torch.zeros(1), "pos_embed": positions}, model, (4, 4))["pos_embed"]
    assert torch.equal(found[:, here:], positions[:, there:])
    assert not here or not found[:, 0].any()


def test_a_grid_that_cannot_be_told():
    with pytest.raises(ValueError, match="210 positions"):
        fit_positions({"cls_token": torch.zeros(1), "pos_embed": torch.zeros(1, 211, 64)}, vit(64), None)
