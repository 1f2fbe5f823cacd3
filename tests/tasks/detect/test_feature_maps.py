import pytest
import torch

from backbones.backbone import create
from backbones.diagnostics.maps import token_maps
from tasks.detect.feature_maps import MapOptions, StageMaps, VitMaps, make_maps


def backbone(**given):
    torch.manual_seed(0)
    return create("tiny", **{"weights": "random", "depth": 4, **given}).eval()


@pytest.mark.parametrize("given", [{}, {"attention": "relu"}, {"stem": "conv"}])
def test_without_windows_the_maps_are_the_backbones_own(given) -> None:
    images = torch.rand(2, 3, 96, 64)
    expected = backbone(pool="gap", **given).maps(images, [1, 3])
    with torch.no_grad():
        found = make_maps(backbone(pool="gap", **given), MapOptions(out_indices=(1, -1)))(images)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("attention", ["softmax", "relu"])
def test_attention_is_drawn_with_relative_positions_and_not_of_windows(attention: str) -> None:
    images = torch.rand(2, 3, 96, 64)
    plain, relative, windowed = (
        VitMaps(backbone(attention=attention), MapOptions(out_indices=(-1,), grid=(4, 4), **given))
        for given in ({}, {"relative": True}, {"relative": True, "window": 2, "global_blocks": (0,)})
    )
    with torch.no_grad():
        expected, same, without = (token_maps(maps.backbone, images, maps) for maps in (plain, relative, windowed))
        torch.nn.init.normal_(relative.backbone.model.blocks[-1].attn.core.rel_pos_h)
        moved = token_maps(relative.backbone, images, relative)
    assert expected["attention"].shape == (2, 6, 4)
    torch.testing.assert_close(same, expected)  # tables begin at zero
    assert not torch.allclose(moved["attention"], expected["attention"], atol=1e-4)
    assert without.keys() == {"similarity"}


def test_a_windowed_block_sees_its_window_alone() -> None:
    maps = VitMaps(backbone(depth=1), MapOptions(out_indices=(-1,), window=2, global_blocks=()))
    images = torch.rand(1, 3, 64, 64)
    changed = images.clone()
    changed[..., 32:, 32:] = 0  # the window at the bottom right
    with torch.no_grad():
        before, after = maps(images)[0], maps(changed)[0]
    same = torch.isclose(before, after, atol=1e-6).all(1)[0]
    assert same[:2].all()
    assert same[:, :2].all()
    assert not same[2:, 2:].any()


def test_the_last_block_of_each_quarter_is_global() -> None:
    maps = VitMaps(backbone(depth=12), MapOptions(out_indices=(-1,), window=14))
    assert [number for number, windowed in enumerate(maps.windowed) if not windowed] == [2, 5, 8, 11]
    chosen = VitMaps(backbone(), MapOptions(out_indices=(-1,), window=2, global_blocks=(0, -1)))
    assert chosen.windowed == [False, True, True, False]


def test_checkpointing_changes_no_gradient() -> None:
    images = torch.rand(1, 3, 64, 64)
    gradients = []
    for checkpoint in (False, True):
        maps = make_maps(
            backbone(), MapOptions(out_indices=(-1,), window=2, global_blocks=(1,), grad_checkpointing=checkpoint)
        ).train()
        maps(images)[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in maps.parameters() if parameter.requires_grad])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_models_with_stages_give_four_maps() -> None:
    maps = make_maps(create("test_resnet", weights="random").eval(), MapOptions(out_indices=(-1,)))
    assert isinstance(maps, StageMaps)
    found = maps(torch.rand(1, 3, 64, 64))
    assert maps.strides == [4, 8, 16, 32]
    assert [level.shape[2] for level in found] == [16, 8, 4, 2]
    assert [level.shape[1] for level in found] == maps.channels
