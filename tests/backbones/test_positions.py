"""Position embeddings on other grids."""

import json
import math

import numpy as np
import pytest
import timm
import torch

from backbones.backbone import create
from backbones.positions import RESAMPLINGS, fit_positions, patch_positions, resample_positions, sincos2d, source_grid
from backbones.spec import override, resolve
from backbones.weights.export import export
from transfer.core.errors import UsageError


def vit(size, pool="cls"):
    return timm.create_model("vit_tiny", img_size=size, pool=pool, num_classes=0)


def test_sincos_equals_the_formula():
    table = sincos2d(2, 3, 8)
    for row in range(2):
        for column in range(3):
            angles = [1 / 10000 ** (i / (8 / 4 - 1)) for i in range(2)]
            expected = [f(position * a) for position in (column, row) for f in (math.sin, math.cos) for a in angles]
            torch.testing.assert_close(table[3 * row + column], torch.tensor(expected))


def state(tokens, **prefix):
    """A table of positions of which each is its own number, and the tokens before those of patches."""
    table = torch.arange(tokens, dtype=torch.float32).view(1, tokens, 1).expand(1, tokens, 64)
    return {name: torch.randn(1, number, 64) for name, number in prefix.items()} | {"pos_embed": table}


def test_a_class_token_without_a_position_in_the_file():
    found = fit_positions(state(16, cls_token=1), vit(64), (4, 4))["pos_embed"]
    assert torch.equal(found[:, 1:], state(16)["pos_embed"])
    assert not found[:, 0].any()


PREFIXES = {"none": {}, "class": {"cls_token": 1}, "registers": {"cls_token": 1, "reg_token": 4}}
GRIDS_OF_STATES = [
    # positions, tokens before the patches', pixels of the model, of the file, grid of the file
    (1 + 21 * 10, "class", (64, 64), (256, 128), (21, 10)),  # TransReID's patches at a stride of 12
    (196, "class", (64, 64), None, (14, 14)),  # DeiT III: a class token without a position
    (1 + 256, "registers", (64, 64), None, (16, 16)),  # DINOv2
    (5 + 256, "registers", (64, 64), None, (16, 16)),
    (4, "registers", (32, 32), None, (2, 2)),  # fewer than the tokens before those of patches
    (256, "none", (64, 64), None, (16, 16)),
    (1 + 210, "class", (64, 64), None, None),
    (9, "registers", (64, 64), None, None),  # 3 x 3 of patches alone, or 2 x 2 behind class token and registers
    (1 + 64, "class", (64, 256), None, None),  # 8 x 8, or the model's 4 x 16
    (1 + 64, "class", (64, 256), (128, 128), (8, 8)),
    (50, "class", (80, 160), None, None),  # 7 x 7 behind the class token's, or the model's 5 x 10 without one
]


@pytest.mark.parametrize(("positions", "prefix", "here", "there", "grid"), GRIDS_OF_STATES)
def test_the_grid_of_a_state(positions, prefix, here, there, grid):
    options = () if there is None else (there,)
    if grid is not None:
        assert source_grid(state(positions, **PREFIXES[prefix]), vit(here), *options) == grid
        return
    with pytest.raises(ValueError, match=rf"{positions} positions, .*; set --weights-size H W"):
        source_grid(state(positions, **PREFIXES[prefix]), vit(here), *options)


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
        ("dino", "vit_tiny", {"cls_pos_embed": False}),
        ("dino", "vit_tiny_patch16_224", {}),
        ("dino", "deit_tiny_distilled_patch16_224", {}),
    ],
)
def test_every_pass_of_a_plain_vit_resamples_in_its_way(way, name, overrides):
    backbone = create(name, weights="random", img_size=(96, 64), pos_embed_interp=way, **overrides).eval()
    model, prefix = backbone.model, 0 if overrides.get("cls_pos_embed") is False else backbone.model.num_prefix_tokens
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


def test_a_grid_of_as_many_places_is_another_grid():
    model = create("vit_tiny", weights="random", img_size=(64, 64)).model
    expected = patch_positions(model, (2, 8)).flatten(1, 2)
    model.set_input_size((32, 128))
    assert torch.equal(model.pos_embed[:, 1:], expected)


def test_an_export_says_how_it_was_trained_and_binds_no_recipe(tmp_path):
    folder = export(create("vit_tiny", weights="random", img_size=64, pos_embed_interp="dino"), tmp_path / "export")
    assert resolve(str(folder)).pos_embed_interp == "dino"
    usual = {"pos_embed_interp": "bilinear"}
    assert resolve(str(folder), usual=usual).pos_embed_interp == "bilinear"
    assert resolve("vit_tiny", weights=str(folder), usual=usual).pos_embed_interp == "bilinear"
    assert "timm resamples positions in its own way" in (folder / "README.md").read_text()
    # and `load: strict` agrees
    assert create(str(folder), pos_embed_interp="bicubic").model.pos_embed_interp == "bicubic"
    config = json.loads((folder / "config.json").read_text())
    config |= config.pop("suite")
    (folder / "config.json").write_text(json.dumps(config))  # as exported under our names alone
    assert timm.create_model(f"local-dir:{folder}", pretrained=True).pos_embed_interp == "dino"


def test_who_says_how_positions_are_resampled(tmp_path):
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nweights: random\npos_embed_interp: corners\n")
    usual = {"pos_embed_interp": "bilinear"}
    assert resolve("vit_tiny").pos_embed_interp == "antialias"
    assert resolve("vit_tiny", usual=usual).pos_embed_interp == "bilinear"
    assert resolve(str(tmp_path / "mine.yaml"), usual=usual).pos_embed_interp == "corners"
    assert resolve(str(tmp_path / "mine.yaml"), usual=usual, pos_embed_interp="dino").pos_embed_interp == "dino"
    assert resolve("vit_small_patch16_224.dino", usual=usual).pos_embed_interp == "bilinear"
    assert resolve("resnet18", usual=usual).pos_embed_interp is None
    assert override(resolve("vit_tiny_patch16_224"), arch="resnet18").pos_embed_interp is None
    with pytest.raises(UsageError, match=r"`pos_embed_interp` does not apply to resnet18; of ours vit_ti"):
        resolve("resnet18", pos_embed_interp="bicubic")
    with pytest.raises(UsageError, match="`pos_embed_interp: cubic` must be one of antialias, bicubic, dino"):
        resolve("vit_tiny", pos_embed_interp="cubic")
    assert resolve("vit_tiny", usual=usual).identity() != resolve("vit_tiny").identity()
