from pathlib import Path

import pytest
import torch
from torch import Tensor

from backbones.attention import ATTENTIONS
from backbones.diagnostics.recorder import weights_of, weights_shown
from backbones.diagnostics.statistics import cosine_similarity
from backbones.kernels.functions import SCORE_FUNCTIONS
from tests.backbones.diagnostics.support import IMAGES, recorded, row_sums, similarity, tiny, user_parts
from tests.backbones.support import users_file


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
    names = [about["place"] for about in recorded(tiny(stem=f"{user_parts(tmp_path)}:Shared"))[0].layers]
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
    user = user_parts(tmp_path)
    assert row_sums(recorded(tiny(attention=f"{user}:plain"))[2]["block 2"]) == pytest.approx([1] * 3, abs=1e-5)
    for part, why in ((f"{user}:crooked", "independent"), (f"{users_file(tmp_path)}:Mean", "module")):
        recorder, _, attentions = recorded(tiny(attention=part))
        assert not attentions
        (said,) = recorder.missing
        assert "block 1, block 2" in said
        assert why in said
