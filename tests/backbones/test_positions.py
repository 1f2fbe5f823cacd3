"""Position embeddings on other grids."""

import json
import math

import numpy as np
import pytest
import timm
import torch

from backbones.backbone import create
from backbones.checkpoints.exports import export
from backbones.errors import UsageError
from backbones.positions import RESAMPLINGS, fit_positions, patch_positions, resample_positions, sincos2d
from backbones.spec import override, resolve


def vit(size, pool="cls"):
    return timm.create_model("vit_tiny", img_size=size, pool=pool, num_classes=0)


def test_sincos_equals_the_formula():
    table = sincos2d(2, 3, 8)
    for row in range(2):
        for column in range(3):
            angles = [1 / 10000 ** (i / (8 / 4 - 1)) for i in range(2)]
            expected = [f(position * a) for position in (column, row) for f in (math.sin, math.cos) for a in angles]
            torch.testing.assert_close(table[3 * row + column], torch.tensor(expected))


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


def cubic(distance, a):
    """Keys's kernel."""
    x = abs(distance)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def weights_of(way, old, new):
    """[new, old]: what a place of the new grid takes from each of the old one, along one side; in float64."""
    found = np.zeros((new, old))
    for place in range(new):
        if way == "antialias":  # weights within the old grid, wider where the grid shrinks, brought to a sum of 1
            wide = max(old / new, 1.0)
            centre = (place + 0.5) * old / new
            row = [cubic((tap + 0.5 - centre) / wide, -0.5) for tap in range(old)]
            found[place] = np.array(row) / sum(row)
            continue
        scale = (new + 0.1) / old if way == "dino" else new / old
        at = place * (old - 1) / (new - 1) if way == "corners" else (place + 0.5) / scale - 0.5
        if way in ("bilinear", "corners"):
            at = max(at, 0.0)
        low = math.floor(at)
        taps = range(low - 1, low + 3) if way in ("bicubic", "dino") else range(low, low + 2)
        for tap in taps:  # beyond the edge stands the edge
            share = cubic(at - tap, -0.75) if way in ("bicubic", "dino") else max(1 - abs(at - tap), 0.0)
            found[place, min(max(tap, 0), old - 1)] += share
    return found


def plainly(table, grid, way):
    """[1, h, w, D] on another grid, as the product with both sides' weights."""
    rows, columns = (weights_of(way, old, new) for old, new in zip(table.shape[1:3], grid))
    return torch.from_numpy(np.einsum("yh,xw,bhwd->byxd", rows, columns, table.double().numpy()))


GRIDS = [((14, 14), (6, 6)), ((14, 14), (16, 8)), ((5, 7), (12, 3)), ((14, 14), (33, 40))]


@pytest.mark.parametrize("way", RESAMPLINGS)
def test_resampling_equals_the_weights_of_each_place_written_out(way):
    for old, new in GRIDS:
        table = torch.randn(1, *old, 3, dtype=torch.float64)
        torch.testing.assert_close(resample_positions(table, new, way), plainly(table, new, way), rtol=0, atol=1e-12)
        single = resample_positions(table.float(), new, way)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), plainly(table.float(), new, way), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("way", "name", "overrides"),
    [
        *((way, "vit_tiny", {}) for way in RESAMPLINGS),
        ("dino", "vit_tiny", {"pool": "gap"}),
        ("dino", "vit_tiny", {"class_position": False}),
        ("dino", "vit_tiny_patch16_224", {}),
        ("dino", "deit_tiny_distilled_patch16_224", {}),
    ],
)
def test_every_pass_of_a_plain_vit_resamples_in_its_way(way, name, overrides):
    backbone = create(name, weights="random", img_size=(96, 64), pos_resample=way, **overrides).eval()
    model, prefix = backbone.model, 0 if overrides.get("class_position") is False else backbone.model.num_prefix_tokens
    torch.nn.init.normal_(model.pos_embed)
    expected = plainly(model.pos_embed.detach()[:, prefix:].unflatten(1, (6, 4)), (3, 5), way)
    torch.testing.assert_close(patch_positions(model, (3, 5)).double(), expected, rtol=0, atol=2e-5)
    stem, positioned = backbone.tokens(torch.rand(1, 3, 48, 80))[:2]
    added = positioned[:, model.num_prefix_tokens :] - stem
    torch.testing.assert_close(added.double(), expected.flatten(1, 2), rtol=0, atol=2e-5)
    before = model.pos_embed.detach().clone()
    model.set_input_size((48, 80))
    torch.testing.assert_close(model.pos_embed[:, prefix:].double(), expected.flatten(1, 2), rtol=0, atol=2e-5)
    assert torch.equal(model.pos_embed[:, :prefix], before[:, :prefix])


def test_an_export_says_how_it_was_trained_and_binds_no_recipe(tmp_path):
    folder = export(create("vit_tiny", weights="random", img_size=64, pos_resample="dino"), tmp_path / "export")
    assert resolve(str(folder)).pos_resample == "dino"
    assert resolve(str(folder), usual={"pos_resample": "bilinear"}).pos_resample == "bilinear"
    assert resolve("vit_tiny", weights=str(folder), usual={"pos_resample": "bilinear"}).pos_resample == "bilinear"
    assert "timm resamples positions in its own way" in (folder / "README.md").read_text()
    assert create(str(folder), pos_resample="bicubic").model.pos_resample == "bicubic"  # and `load: strict` agrees
    config = json.loads((folder / "config.json").read_text())
    config |= config.pop("suite")
    (folder / "config.json").write_text(json.dumps(config))  # as exported under our names alone
    assert timm.create_model(f"local-dir:{folder}", pretrained=True).pos_resample == "dino"


def test_who_says_how_positions_are_resampled(tmp_path):
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nweights: random\npos_resample: corners\n")
    usual = {"pos_resample": "bilinear"}
    assert resolve("vit_tiny").pos_resample == "antialias"
    assert resolve("vit_tiny", usual=usual).pos_resample == "bilinear"
    assert resolve(str(tmp_path / "mine.yaml"), usual=usual).pos_resample == "corners"
    assert resolve(str(tmp_path / "mine.yaml"), usual=usual, pos_resample="dino").pos_resample == "dino"
    assert resolve("vit_small_patch16_224.dino", usual=usual).pos_resample == "bilinear"
    assert resolve("resnet18", usual=usual).pos_resample is None
    assert override(resolve("vit_tiny_patch16_224"), arch="resnet18").pos_resample is None
    with pytest.raises(UsageError, match=r"`pos_resample` does not apply to resnet18; of ours vit_ti"):
        resolve("resnet18", pos_resample="bicubic")
    with pytest.raises(UsageError, match="`pos_resample: cubic` is none of antialias, bicubic, dino"):
        resolve("vit_tiny", pos_resample="cubic")
    assert resolve("vit_tiny", usual=usual).identity() != resolve("vit_tiny").identity()
