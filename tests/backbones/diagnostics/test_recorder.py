"""What the token diagnostics measure: statistics, places of a model, the stem; and what --watch blocks records."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from backbones.attention import ATTENTIONS
from backbones.backbone import Backbone
from backbones.diagnostics.recorder import BlockWatch, Recorder, weights_of, weights_shown
from backbones.diagnostics.statistics import (
    ATTENTION_FIELDS,
    TOKEN_FIELDS,
    attention_statistics,
    correlations,
    cosine_similarity,
    token_statistics,
)
from backbones.diagnostics.stem import stem_facts
from backbones.kernels.functions import SCORE_FUNCTIONS
from tests.backbones.pretrain.dino_support import dino_options, feed, make
from tests.backbones.support import IMAGES, in_pieces, tiny, users_file
from tests.oracles.tokens import attention_facts, token_facts
from tests.oracles.tokens import similarity as plain_similarity
from tests.support import Classifier, context, fit_options
from transfer.core.errors import UsageError
from transfer.engine.learner import Batch, Learner
from transfer.engine.step import Stepper
from transfer.engine.trackers import Tracker

RANDOM = torch.Generator().manual_seed(0)
SQUARE = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
small = partial(tiny, img_size=32)


@torch.inference_mode()
def recorded(backbone: Backbone, class_token: bool = True) -> tuple[Recorder, dict[str, Tensor], dict[str, Tensor]]:
    """The recorder, and [B, fields] of every place and of every attention."""
    recorder = Recorder(backbone, class_token)
    places, attentions = recorder.columns(recorder.rows(SQUARE))
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
    for rows in (torch.cat([drawn(9, 5), torch.zeros(1, 5)]).double(), drawn(3, 8).double()):
        facts = dict(zip(TOKEN_FIELDS, token_statistics(rows[None])[0].tolist(), strict=True))
        assert facts == pytest.approx({"similarity": plain_similarity(rows.numpy()), **token_facts(rows.numpy())})
    signed = torch.tensor([[0.5, -0.5, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]])
    for weights in (drawn(2, 3, 4, 8).softmax(-1), drawn(2, 3, 4, 8).relu(), signed[None, None]):
        found = attention_statistics(weights.double())
        for one, row in zip(weights.double().numpy(), found.tolist()):
            assert dict(zip(ATTENTION_FIELDS, row, strict=True)) == pytest.approx(attention_facts(one))


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
    backbone = small(arch="vit_ti", depth=12, stem="conv")
    recorder, places, _ = recorded(backbone)
    points = [about["place"] for about in recorder.layers if about["kind"] in ("stem", "positions", "block")]
    assert points == ["stem", "positions", *(f"block {number}" for number in range(1, 13))]
    with torch.inference_mode():
        entries = backbone.tokens(SQUARE)
    for name, tokens in zip(points, entries, strict=True):
        assert similarity(places[name]) == pytest.approx(cosine_similarity(tokens).tolist(), abs=1e-5)
    assert not recorder.missing


def test_every_activation_of_the_stem_is_seen_before_and_after() -> None:
    backbone = small(stem="conv")
    recorder, places, _ = recorded(backbone)
    seen = [f"stem conv.{place} {when}" for place in (2, 5, 8) for when in ("before", "after")]
    assert [about["place"] for about in recorder.layers][:7] == [*seen, "stem"]
    x = backbone.normalised(SQUARE)
    with torch.inference_mode():
        for place, module in enumerate(backbone.model.patch_embed.conv):
            if place in (2, 5, 8):
                for name, seen in (("before", x), ("after", torch.relu(x))):
                    expected = cosine_similarity(seen.flatten(2).mT).tolist()
                    assert similarity(places[f"stem conv.{place} {name}"]) == pytest.approx(expected, abs=1e-5)
            x = module(x)


def test_a_user_stem_shows_its_modules(tmp_path: Path) -> None:
    names = [about["place"] for about in recorded(small(stem=f"{users_file(tmp_path)}:Shared"))[0].layers]
    assert names[:4] == [f"stem conv.act {when}{call}" for call in ("", " (call 2)") for when in ("before", "after")]


def test_volo_shows_outlookers_blocks_and_class_attention() -> None:
    backbone = small("volo_d1", stem="conv")
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
        stem = backbone.model.patch_embed(backbone.normalised(SQUARE))
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
    backbone = small(name, img_size=64)
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
    assert row_sums(recorded(small(attention=f"{user}:plain"))[2]["block 2"]) == pytest.approx([1] * 3, abs=1e-5)
    for part, why in ((f"{user}:crooked", "independent"), (f"{user}:Mean", "module")):
        recorder, _, attentions = recorded(small(attention=part))
        assert not attentions
        (said,) = recorder.missing
        assert "block 1, block 2" in said
        assert why in said


def test_weights_behind_the_last_relu_of_the_full_stem() -> None:
    backbone = small(stem="conv")
    stem, block = backbone.model.patch_embed, backbone.model.blocks[0]
    torch.nn.init.uniform_(stem.conv[7].weight, 0.5, 2)
    torch.nn.init.uniform_(stem.conv[7].bias, -1, 1)
    torch.nn.init.uniform_(block.norm1.weight, 0.5, 2)
    facts = stem_facts(backbone, SQUARE[:1])
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
    backbone = small(stem="proj_bn_relu")
    last = stem_facts(backbone, SQUARE[:1])["last_activation"]
    qkv = backbone.model.blocks[0].attn.qkv.weight
    assert last["weights"][0]["norm"] == pytest.approx([qkv[:, c].norm().item() for c in range(64)], rel=1e-5)
    assert last["weights"][0]["pearson"] is None, "all scales are 1 at the start"


Row = dict[str, float]


class Squares(Learner):
    """Brings the pooled features of images to 0."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        return {"loss": self.backbone.pooled(batch).square().mean()}


def watched(backbone: Backbone, step: int = 1, images: Tensor = IMAGES, **given: Any) -> Row:
    """What one step records."""
    precision = given.get("precision", "fp32")
    stepper = Stepper(Squares(backbone), fit_options(**given), context(watch=BlockWatch, precision=precision))
    return stepper.step(step, 0.0, images).read_watched()


def expected(backbone: Backbone, images: Tensor = IMAGES) -> Row:
    """The same by plain products of the model's weights, and by autograd."""
    row: Row = {}
    loss = backbone.pooled(images).square().mean()
    for number, (block, x) in enumerate(zip(backbone.model.blocks, backbone.tokens(images)[1:]), 1):
        attention = block.attn
        q, k, _ = nn.functional.linear(block.norm1(x), attention.qkv.weight, attention.qkv.bias).chunk(3, dim=-1)
        q, k = (part.unflatten(-1, (attention.num_heads, -1)) for part in (q, k))
        q, k = attention.q_norm(q), attention.k_norm(k)
        logits = torch.einsum("bnhd,blhd->bhnl", q, k) / math.sqrt(q.shape[-1])
        row[f"max_attention_logit/block {number}"] = logits.abs().max().item()
        used = [parameter for parameter in block.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, used, retain_graph=True)
        row[f"grad_norm/block {number}"] = torch.cat([one.flatten() for one in gradients]).norm().item()
    return row


@pytest.mark.parametrize("given", [{}, {"attention": "relu", "gate": "sigmoid", "alpha": "learned"}, {"qk_norm": True}])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_values_are_those_of_the_models_weights_whose_gradients_are_unscaled(given: Any, precision: str) -> None:
    for parts in (1, 2):  # micro-batches
        backbone = tiny(**given)
        backbone.model.set_grad_checkpointing(parts == 2)
        row = watched(backbone, grad_accum_steps=parts, clip_grad=1e-3, precision=precision)
        assert row == pytest.approx(expected(tiny(**given).train()), rel=1e-3 if precision == "fp32" else 0.05)


def test_under_sam_logits_are_of_both_passes_and_gradients_of_the_second() -> None:
    row, plain = watched(tiny(), sam="sam", sam_rho=1.0), expected(tiny().train())
    assert all(row[name] != pytest.approx(plain[name]) for name in plain if name.startswith("grad_norm"))
    assert all(row[name] >= plain[name] * (1 - 1e-5) for name in plain if name.startswith("max"))


def test_attentions_of_timm_and_volo_have_logits_where_queries_are_known() -> None:
    row = watched(tiny("vit_tiny_patch16_224"))
    assert len(row) == 24
    assert row == pytest.approx(expected(tiny("vit_tiny_patch16_224").train()), rel=1e-4)
    row = watched(tiny("volo_tiny"))
    missing = {name for name, value in row.items() if math.isnan(value)}
    assert missing == {
        f"max_attention_logit/{name}" for name in ("outlooker 1", "class attention 1", "class attention 2")
    }


def test_frozen_blocks_have_no_gradient_and_compiled_ones_no_logits(capsys: Any, monkeypatch: Any) -> None:
    row = watched(tiny(), trainable=("*blocks.1.*",))
    assert math.isnan(row["grad_norm/block 1"])
    assert math.isfinite(row["grad_norm/block 2"])
    monkeypatch.setattr(Learner, "compile", lambda _: None)
    row = watched(tiny(), compile=True)
    assert [math.isnan(value) for value in row.values()] == [True, False] * 2
    assert "gradient norms only, since --compile hides the attention logits" in capsys.readouterr().err


def test_only_the_student_is_watched() -> None:
    learner = make(dino_options())
    blocks = BlockWatch(learner).blocks
    assert [*blocks.values()] == [*learner.student.backbone.model.blocks]
    learner.student, learner.teacher = learner.teacher, learner.student
    assert [*BlockWatch(learner).blocks.values()] == [*learner.student.backbone.model.blocks], "in any order"


def test_training_is_the_same_to_the_bit_and_resumption_keeps_the_steps(tmp_path: Path) -> None:
    options = dino_options(epochs=2, drop_path=0.3, watch_every=3, sam="sam", grad_accum_steps=2)

    def start(here: Any, watch: Any = BlockWatch) -> Any:
        here.watch, here.precision = watch, "bf16"  # autocast keeps copies of weights, with or without gradients
        return make(options), feed(parts=2)

    plain, bare = in_pieces(tmp_path / "plain", (), options, lambda here: start(here, None))
    whole, lines = in_pieces(tmp_path / "whole", (), options, start)
    parts, again = in_pieces(tmp_path / "parts", (2, 3, 5), options, start)
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(plain, whole, parts, strict=True))
    assert lines == again
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows if "max_attention_logit/block 1" in row] == [1, 3, 6]
    assert [{name: row[name] for name in row if "/" not in name} for row in rows] == [*map(json.loads, bare)]


def test_a_users_attention_has_null_for_its_logits_and_a_gradient_norm(tmp_path: Path) -> None:
    options, tracker = dino_options(epochs=1), Mock(spec=Tracker)

    def start(here: Any) -> Any:
        here.watch, here.tracker = BlockWatch, tracker
        learner = make(options)
        users = tiny(attention=f"{users_file(tmp_path)}:Mean", patch=8, img_size=32)
        learner.student.backbone.model.blocks[0].attn = users.model.blocks[0].attn
        learner.teacher.backbone.model.blocks[0].attn = users.model.blocks[1].attn.requires_grad_(False)
        return learner, feed()

    _, (line, *_) = in_pieces(tmp_path / "run", (), options, start)
    row = json.loads(line, parse_constant=pytest.fail)
    assert row["max_attention_logit/block 1"] is None
    assert row["max_attention_logit/block 2"] > 0
    assert row["grad_norm/block 1"] > 0
    assert tracker.log.call_args_list[0].args[1].keys() == row.keys() - {"step", "epoch"}


def test_what_has_no_known_blocks_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"^--watch blocks: Classifier trains no backbone"):
        BlockWatch(Classifier())
    with pytest.raises(UsageError, match=r"^--watch blocks: backbone resnet18: resnet18 is neither a plain"):
        BlockWatch(Squares(tiny("resnet18")))
