"""What the token diagnostics measure: statistics, places of a model, and the stem."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backbones.attention import ATTENTIONS
from backbones.backbone import Backbone
from backbones.diagnostics.recorder import Recorder, weights_of, weights_shown
from backbones.diagnostics.statistics import (
    ATTENTION_FIELDS,
    TOKEN_FIELDS,
    attention_statistics,
    correlations,
    cosine_similarity,
    effective_rank,
    singular_values,
    token_statistics,
)
from backbones.diagnostics.stem import stem_facts
from backbones.kernels.functions import SCORE_FUNCTIONS
from tests.backbones import support
from tests.backbones.support import users_file
from tests.oracles.tokens import attention_facts, token_facts
from tests.oracles.tokens import similarity as plain_similarity

RANDOM = torch.Generator().manual_seed(0)
IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
tiny = partial(support.tiny, img_size=32)


@torch.inference_mode()
def recorded(backbone: Backbone, class_token: bool = True) -> tuple[Recorder, dict[str, Tensor], dict[str, Tensor]]:
    """The recorder, and [B, fields] of every place and of every attention."""
    recorder = Recorder(backbone, class_token)
    places, attentions = recorder.columns(recorder.rows(IMAGES))
    names, blocks = ([about["place"] for about in found] for found in (recorder.layers, recorder.attentions))
    return recorder, dict(zip(names, places, strict=True)), dict(zip(blocks, attentions, strict=True))


def similarity(rows: Tensor) -> list[float]:
    return rows[:, TOKEN_FIELDS.index("similarity")].tolist()


def row_sums(rows: Tensor) -> list[float]:
    return rows[:, ATTENTION_FIELDS.index("row_sum")].tolist()


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RANDOM) + 0.3


def test_cosine_similarity_at_its_bounds() -> None:
    simplex = torch.eye(5) - 1 / 5  # vertices as far apart as five can be
    assert cosine_similarity(simplex) == pytest.approx(-1 / 4)
    assert cosine_similarity(simplex) >= -1 / 4
    same = torch.full((7, 3), 0.1) * torch.arange(1, 8)[:, None]
    assert cosine_similarity(same) == pytest.approx(1)
    assert cosine_similarity(same) <= 1
    assert cosine_similarity(1e30 * same) == pytest.approx(1)
    assert cosine_similarity(1e-30 * same) == pytest.approx(1)


def test_statistics_are_the_plain_ones() -> None:
    rows = torch.cat([drawn(9, 5), torch.zeros(1, 5)]).double()
    facts = dict(zip(TOKEN_FIELDS, token_statistics(rows[None])[0].tolist(), strict=True))
    assert facts == pytest.approx({"similarity": plain_similarity(rows.numpy()), **token_facts(rows.numpy())})
    signed = torch.tensor([[0.5, -0.5, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]])
    for weights in (drawn(2, 3, 4, 8).softmax(-1), drawn(2, 3, 4, 8).relu(), signed[None, None]):
        found = attention_statistics(weights.double())
        for one, row in zip(weights.double().numpy(), found.tolist()):
            assert dict(zip(ATTENTION_FIELDS, row, strict=True)) == pytest.approx(attention_facts(one))


@pytest.mark.parametrize(("n", "d"), [(3, 8), (8, 3), (1, 5)])
def test_singular_values_and_effective_rank(n: int, d: int) -> None:
    batch = drawn(2, n, d).double()
    assert torch.allclose(singular_values(batch).flip(-1), torch.linalg.svdvals(batch))
    rank = effective_rank(singular_values(batch))
    assert ((rank >= 1) & (rank <= min(n, d) + 1e-9)).all()


def test_weights_of_nothing_have_no_entropy() -> None:
    nothing = attention_statistics(torch.zeros(1, 1, 2, 4))[0]
    assert nothing[ATTENTION_FIELDS.index("entropy")].isnan()
    assert attention_statistics(torch.full((1, 1, 2, 4), torch.nan)).isnan().all()


def test_correlations() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert correlations(x, x.exp())["spearman"] == pytest.approx(1)
    assert 0.8 < correlations(x, x.exp())["pearson"] < 1
    assert correlations(x, -2 * x) == pytest.approx({"pearson": -1, "spearman": -1})
    none = {"pearson": None, "spearman": None}
    assert correlations(x, torch.ones(4)) == none
    assert correlations(x, torch.tensor([1.0, 2.0, 3.0, torch.inf])) == none
    assert correlations(x[:1], x[:1]) == none


def test_the_points_of_figure_1_are_the_tokens_of_the_backbone() -> None:
    backbone = tiny(arch="vit_ti", depth=12, stem="conv")
    recorder, places, _ = recorded(backbone)
    points = [about["place"] for about in recorder.layers if about["kind"] in ("stem", "positions", "block")]
    assert points == ["stem", "positions", *(f"block {number}" for number in range(1, 13))]
    with torch.inference_mode():
        entries = backbone.tokens(IMAGES)
    for name, tokens in zip(points, entries, strict=True):
        assert similarity(places[name]) == pytest.approx(cosine_similarity(tokens).tolist(), abs=1e-5)
    assert not recorder.missing


def test_every_activation_of_the_stem_is_seen_before_and_after() -> None:
    backbone = tiny(stem="conv")
    recorder, places, _ = recorded(backbone)
    seen = [f"stem conv.{place} {when}" for place in (2, 5, 8) for when in ("before", "after")]
    assert [about["place"] for about in recorder.layers][:7] == [*seen, "stem"]
    x = backbone.normalised(IMAGES)
    with torch.inference_mode():
        for place, module in enumerate(backbone.model.patch_embed.conv):
            if place in (2, 5, 8):
                for name, seen in (("before", x), ("after", torch.relu(x))):
                    expected = cosine_similarity(seen.flatten(2).mT).tolist()
                    assert similarity(places[f"stem conv.{place} {name}"]) == pytest.approx(expected, abs=1e-5)
            x = module(x)


def test_a_user_stem_shows_its_modules(tmp_path: Path) -> None:
    names = [about["place"] for about in recorded(tiny(stem=f"{users_file(tmp_path)}:Shared"))[0].layers]
    assert names[:4] == [f"stem conv.act {when}{call}" for call in ("", " (call 2)") for when in ("before", "after")]


def test_volo_shows_outlookers_blocks_and_class_attention() -> None:
    backbone = tiny("volo_d1", stem="conv")
    recorder, places, attentions = recorded(backbone)
    kinds = [about["kind"] for about in recorder.layers]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "activation": 6, "stem": 1, "outlooker": 4, "downsampling": 1, "positions": 1, "block": 14,
        "class attention": 2, "final norm": 1,
    }  # fmt: skip
    assert [kinds.index(kind) for kind in ("outlooker", "downsampling", "positions", "block")] == [7, 11, 12, 13]
    assert {about["place"]: about["tokens"] for about in recorder.layers}["stem"] == 16
    assert row_sums(attentions["block 14"]) == pytest.approx([1] * 3, abs=1e-5)
    assert len(recorder.missing) == 2
    assert "outlooker 1" in recorder.missing[0]
    with torch.inference_mode():
        stem = backbone.model.patch_embed(backbone.normalised(IMAGES))
    assert similarity(places["stem"]) == pytest.approx(cosine_similarity(stem.flatten(2).mT).tolist(), abs=1e-5)


@pytest.mark.parametrize("name", [*ATTENTIONS])
def test_weights_of_every_attention_give_its_output(name: str) -> None:
    q, k, v = torch.randn(3, 2, 2, 11, 4, generator=torch.Generator().manual_seed(0))
    weights = weights_of(ATTENTIONS[name], q, k)
    assert weights.shape == (2, 2, 11, 11)
    assert torch.allclose(weights @ v, ATTENTIONS[name](q, k, v), atol=1e-5)
    scores, h = q @ k.mT / 2, name.removesuffix("_sum")
    plain = scores.softmax(-1) if name == "softmax" else SCORE_FUNCTIONS[h](scores.clone()) / 11
    if name.endswith("_sum"):
        plain = plain / plain.abs().sum(-1, keepdim=True).clamp_min(1e-12)
    assert torch.allclose(weights, plain, atol=1e-5)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "volo_d1"])
def test_softmax_weights_of_timms_attentions_give_their_outputs(name: str) -> None:
    backbone = tiny(name, img_size=64)
    attention = backbone.model.blocks[0].attn if name.startswith("vit") else backbone.model.network[2][0].attn
    x = torch.randn(2, 4, 4, attention.qkv.in_features) / 8
    x = x if name == "volo_d1" else x.flatten(1, 2)
    seen: list[Tensor] = []
    with torch.no_grad(), weights_shown(attention, seen.append):
        out = attention(x)
    v = attention.qkv(x.flatten(1, -2)).unflatten(2, (3, attention.num_heads, -1))[:, :, 2].transpose(1, 2)
    plain = attention.proj((seen[0] @ v).transpose(1, 2).flatten(2))
    assert torch.allclose(out.view(plain.shape), plain, atol=1e-5)


def test_attention_that_shows_no_weights_is_said(tmp_path: Path) -> None:
    user = users_file(tmp_path)
    assert row_sums(recorded(tiny(attention=f"{user}:plain"))[2]["block 2"]) == pytest.approx([1] * 3, abs=1e-5)
    for part, why in ((f"{user}:crooked", "independent"), (f"{user}:Mean", "module")):
        recorder, _, attentions = recorded(tiny(attention=part))
        assert not attentions
        (said,) = recorder.missing
        assert "block 1, block 2" in said
        assert why in said


def test_weights_behind_the_last_relu_of_the_full_stem() -> None:
    backbone = tiny(stem="conv")
    stem, block = backbone.model.patch_embed, backbone.model.blocks[0]
    torch.nn.init.uniform_(stem.conv[7].weight, 0.5, 2)
    torch.nn.init.uniform_(stem.conv[7].bias, -1, 1)
    torch.nn.init.uniform_(block.norm1.weight, 0.5, 2)
    facts = stem_facts(backbone, IMAGES[:1])
    assert [norm["norm"] for norm in facts["norms"]] == ["conv.1", "conv.4", "conv.7"]
    last = facts["last_activation"]
    assert (last["norm"], last["activation"]) == ("conv.7", "conv.8")
    s = [math.hypot(a, b) for a, b in zip(stem.conv[7].bias.tolist(), stem.conv[7].weight.tolist())]
    assert last["penalty"] == pytest.approx(s)
    following, through = last["weights"]
    assert following["norm"] == pytest.approx([stem.proj.weight[:, c].norm().item() for c in range(64)], rel=1e-5)
    assert through["norm"][5] == pytest.approx(reach(backbone, channel=5), rel=1e-4)
    w = following["norm"]
    balance = 2 * sum(a * b for a, b in zip(w, s)) / sum(a * a + b * b for a, b in zip(w, s))
    assert following["balance"] == pytest.approx(balance)
    assert -1 <= following["pearson"] <= 1


def reach(backbone: Backbone, channel: int) -> float:
    """Root of the sum of squares of all that a unit in this channel does to q, k, v, without the norm's division."""
    stem, block = backbone.model.patch_embed, backbone.model.blocks[0]
    side, total = stem.proj.kernel_size[0], 0.0
    for place in range(side**2):
        x = torch.zeros(1, 64, side**2)
        x[0, channel, place] = 1
        token = stem.proj(x.view(1, 64, side, side)).flatten() - stem.proj.bias
        normed = (token - token.mean()) * block.norm1.weight
        total += (block.attn.qkv.weight @ normed).square().sum().item()
    return math.sqrt(total)


def test_where_the_relu_ends_the_stem_the_first_attention_follows() -> None:
    backbone = tiny(stem="proj_bn_relu")
    last = stem_facts(backbone, IMAGES[:1])["last_activation"]
    qkv = backbone.model.blocks[0].attn.qkv.weight
    assert last["weights"][0]["norm"] == pytest.approx([qkv[:, c].norm().item() for c in range(64)], rel=1e-5)
    assert last["weights"][0]["pearson"] is None, "all scales are 1 at the start"
