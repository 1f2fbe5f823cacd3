"""What `--watch blocks` records equals an independent computation, and changes nothing of the training."""

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.diagnostics.recorder import BlockWatch
from tests.backbones.pretrain.dino_support import dino_options, feed, make
from tests.backbones.support import IMAGES, in_pieces, tiny, users_file
from tests.support import Classifier, context, fit_options
from transfer.core.errors import UsageError
from transfer.engine.learner import Batch, Learner
from transfer.engine.step import Stepper
from transfer.engine.trackers import Tracker

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
def test_values_are_those_of_the_models_weights(given: dict[str, Any]) -> None:
    for parts in (1, 2):  # micro-batches
        row = watched(tiny(**given), grad_accum_steps=parts, clip_grad=1e-3)
        assert row == pytest.approx(expected(tiny(**given).train()), rel=1e-4)


def test_under_sam_logits_are_of_both_passes_and_gradients_of_the_second() -> None:
    row, plain = watched(tiny(), sam="sam", sam_rho=1.0), expected(tiny().train())
    assert all(row[name] != pytest.approx(plain[name]) for name in plain if name.startswith("grad_norm"))
    assert all(row[name] >= plain[name] * (1 - 1e-5) for name in plain if name.startswith("max"))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_watches_unscaled_gradients(precision: str) -> None:
    assert watched(tiny(), precision=precision) == pytest.approx(expected(tiny().train()), rel=0.05)


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


def test_checkpointed_blocks_are_watched_too() -> None:
    backbone = tiny()
    backbone.model.set_grad_checkpointing()
    assert watched(backbone) == pytest.approx(expected(tiny().train()), rel=1e-4)


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
