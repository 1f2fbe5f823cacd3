"""The stem grammar, and the modules it stands for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from backbones.stem_layers import ScaledReLU, StemEmbed
from backbones.stems import ACTIVATIONS, NORMS, STEMS, StemSpec, find_stem, parse
from tests.backbones.support import users_file
from transfer.core.errors import UsageError, UserError


def parameters(stem: str, dim: int = 384, patch: int = 16) -> int:
    return sum(p.numel() for p in StemEmbed(stem, patch_size=patch, embed_dim=dim).parameters())


# arXiv 2109.03810, rows of Tables 2, 3 and 4: parameters more than the patchify stem of DeiT-S (295,296)
ROWS = {
    "1Proj": 0,
    "1Proj+1ReLU": 0,
    "1Proj+1BN+1ReLU": 768,
    "3Conv+3BN+3ReLU+1Proj@2,1,1,8": 1_361_472,
    "3Conv+3BN+1Proj@2,1,1,8": 1_361_472,
    "3Conv+3ReLU+1Proj@2,1,1,8": 1_361_088,
    "3Conv+1Proj@2,1,1,8": 1_361_088,
    "3Conv+1Proj+1ReLU@2,1,1,8": 1_361_088,
    "3Conv+3BN+3ReLU+1Proj@(2,2,2,2)": 1_361_472,
    "3Conv+1Proj@2,2,2,2": 1_361_088,
    "3Conv+1Proj+1ReLU@2,2,2,2": 1_361_088,
}


@pytest.mark.parametrize(("stem", "more"), ROWS.items())
def test_rows_of_the_paper_have_the_parameters_of_the_paper(stem, more):
    assert parameters(stem) == 295_296 + more


ANY_PATCH = [name for name in STEMS if "@" not in STEMS[name]]


@pytest.mark.parametrize("name", STEMS)
def test_every_stem_divides_the_image_by_the_patch(name):
    for patch in (4, 8, 16, 32) if name in ANY_PATCH else (16,):
        embed = StemEmbed(name, patch_size=patch, embed_dim=16, img_size=None)
        assert embed(torch.zeros(2, 3, 3 * patch, 2 * patch)).shape == (2, 6, 16)


def test_full_stem_is_algorithm_1():
    ours = StemEmbed("3Conv+3BN+3ReLU+1Proj", patch_size=16, embed_dim=24).eval()
    convolutions = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
    ).eval()  # fmt: skip
    projection = nn.Conv2d(64, 24, 8, 8)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.1)
    convolutions.load_state_dict(ours.conv.state_dict())
    projection.load_state_dict(ours.proj.state_dict())
    images = torch.randn(2, 3, 224, 224)
    expected = projection(convolutions(images)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(ours(images), expected)
    names = {name for name, _ in ours.named_parameters()}
    assert {"conv.0.weight", "conv.1.bias", "conv.6.weight", "conv.7.weight", "proj.weight", "proj.bias"} <= names


def test_fewer_norms_than_convolutions_belong_to_the_last():
    spec = parse("3Conv+1BN+2GELU+1Proj")
    assert spec.norms == ("", "", "BN", "")
    assert spec.activations == ("", "GELU", "GELU", "")
    assert parse("3Conv+2IBN+1BN+1Proj").norms == ("IBN", "IBN", "BN", "")


def test_after_the_projection_norm_and_activation_act_on_the_map():
    stem = StemEmbed("1Proj+1BN+1ReLU", patch_size=8, embed_dim=4, img_size=None).train()
    images = torch.randn(3, 3, 16, 24)
    projected = stem.proj(images)
    expected = nn.functional.batch_norm(projected, None, None, training=True).clamp_min(0)
    torch.testing.assert_close(stem(images), expected.flatten(2).transpose(1, 2))


def test_scaled_relu():
    layer = ScaledReLU(2)
    x = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(layer(x), x.clamp_min(0))
    with torch.no_grad():
        layer.alpha.copy_(torch.tensor([0.5, -1.0]).view(2, 1, 1))
        layer.beta.copy_(torch.tensor([2.0, -3.0]).view(2, 1, 1))
    expected = torch.stack([2 * (x[:, 0] + 0.5).clamp_min(0), -3 * (x[:, 1] - 1).clamp_min(0)], dim=1)
    torch.testing.assert_close(layer(x), expected)
    layer(x).sum().backward()
    assert layer.alpha.grad is not None


@st.composite
def stems(draw) -> StemSpec:
    convs = draw(st.integers(0, 5))
    some = lambda known, least, most: tuple(draw(st.lists(st.sampled_from(known), min_size=least, max_size=most)))  # noqa: E731
    norms, activations = some(NORMS, 0, convs), some(ACTIVATIONS, 0, convs)
    sizes = lambda count: some(range(1, 100), count, count) if draw(st.booleans()) else ()  # noqa: E731
    return StemSpec(
        norms=("",) * (convs - len(norms)) + norms + (draw(st.sampled_from(("", *NORMS))),),
        activations=("",) * (convs - len(activations)) + activations + (draw(st.sampled_from(("", *ACTIVATIONS))),),
        strides=sizes(convs + 1),
        kernels=sizes(convs + 1),
        widths=some(("64", "12", "D", "D/4"), convs, convs) if draw(st.booleans()) else (),
        bias=len(norms) < convs and draw(st.booleans()),
    )


@given(stems())
def test_what_is_printed_is_parsed_back(spec):
    assert parse(str(spec)) == spec


def test_a_bias_goes_to_the_convolutions_without_a_norm():
    """+192 parameters where none of the three has one; none by itself."""
    stem = StemEmbed("3Conv+1BN+3ReLU+1Proj@bias", img_size=32, patch_size=16, embed_dim=32)
    assert [layer.bias is not None for layer in stem.conv if isinstance(layer, nn.Conv2d)] == [True, True, False]
    assert parameters("3Conv+3ReLU+1Proj@bias") - parameters("conv_relu") == 192


def test_spellings_of_one_stem_have_one_canonical_form():
    whole = "3Conv+3BN+3ReLU+1Proj"
    spellings = ["conv", whole, "3Conv + 3BN+3ReLU+Proj@(2, 1, 1, 8)", f"{whole}@w64,64,64@k7,3,3,8"]
    assert {str(find_stem(text).sized(16)) for text in spellings} == {"3Conv+3BN+3ReLU+1Proj@2,1,1,8"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3Conv+3BNN+1Proj", r"'3BNN'.*did you mean 'BN'"),
        ("3Conv++1Proj", "'' is not a count and a component"),
        ("3Conv+3ReLU+3BN+1Proj", "in this order"),
        ("3Conv+3BN", "then one Proj"),
        ("2Conv+3BN+1Proj", "no more of each than Conv"),
        ("1Proj+2ReLU", "an activation at most"),
        ("3Conv+1Proj@2,1,8", "give the strides once, 4 numbers"),
        ("3Conv+1Proj@2,1,1,8@2,1,1,8", "give the strides once, 4 numbers"),
        ("3Conv+1Proj@w64,64,64,64", "give the widths once, 3 numbers"),
        ("patchfy", "did you mean 'patchify'"),
        ("3Conv+3BN+3ReLU+1Proj@bias", "no convolution is without a norm"),
        ("3Conv+1Proj@2,1,1,4", "2,1,1,4 multiply to 8, not to the patch size 16"),
        ("3Conv+1Proj@k7,2,3,8", "even kernel"),
        ("3Conv+1Proj@wD/3,64,64", "32 is not a multiple of 3"),
    ],
)
def test_errors_say_where_and_what(text, said):
    with pytest.raises(UsageError, match=said):
        find_stem(text).layers(32, 16)


def test_a_users_stem(tmp_path):
    mine, images = users_file(tmp_path), torch.randn(1, 3, 32, 16)
    stem = StemEmbed(f"{mine}:Tanh", patch_size=16, embed_dim=8, img_size=None)
    torch.testing.assert_close(stem(images), stem.conv(images).flatten(2).transpose(1, 2))
    odd = StemEmbed(f"{mine}:Odd", patch_size=16, embed_dim=8, img_size=None)
    with pytest.raises(UserError, match=r"must accept \(dim, patch\) .*got \[1, 8, 1, 1\] instead of \[1, 8, 2, 1\]"):
        odd(images)
