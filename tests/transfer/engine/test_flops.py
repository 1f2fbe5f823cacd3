"""Operation counts against torch's counter and against arithmetic."""

from typing import Any

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from backbones.attention import ATTENTIONS
from backbones.backbone import create
from backbones.flops import COMPONENTS, flops

MODELS = [("tiny", {"attention": name}) for name in ATTENTIONS]
MODELS += [("tiny", {"stem": "conv"}), ("tiny", {"ffn": "conv1d_bn"}), ("volo_d1", {"stem": "conv"}), ("resnet18", {})]


def counted(model, size):
    """torch's counter over a forward pass in which softmax attention is written out."""
    timm.layers.set_fused_attn(False)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(torch.zeros(1, 3, *size))
    timm.layers.set_fused_attn(True)
    return counter.get_total_flops()


@pytest.mark.parametrize(("name", "variant"), MODELS, ids=str)
def test_equals_torchs_counter(name, variant):
    backbone = create(name, img_size=(64, 96), weights="random", **variant).eval()
    counts = flops(backbone, (64, 96))
    assert counts["total"] == pytest.approx(counted(backbone, (64, 96)), rel=0.01)
    assert counts["total"] == sum(counts[component] for component in COMPONENTS)


def test_a_long_identity_counts_in_its_linear_order():
    """(q k^T) v of N x N x d, or q (k^T v) of N x d x d, whichever is less."""
    short, long = (flops(create("tiny", attention="identity"), size)["attention"] for size in (64, 112))
    for tokens, found in ((17, short), (50, long)):
        assert found == 2 * 2 * (tokens * 64 * 64 * 4 + 2 * tokens * min(tokens, 32) * 64)


def test_components_by_hand():
    counts = flops(create("tiny", img_size=(64, 32), attention="relu", gate="sigmoid"), (64, 32))
    tokens, dim = 4 * 2 + 1, 64
    assert counts["stem"] == 2 * (tokens - 1) * 3 * 16 * 16 * dim
    assert counts["attention"] == 2 * 2 * (tokens * dim * dim * 5 + 2 * tokens * tokens * dim)
    assert counts["ffn"] == 2 * 2 * (2 * tokens * dim * 4 * dim)
    assert counts["other"] == 0


def test_a_users_function_is_counted(tmp_path):
    (tmp_path / "mine.py").write_text("def linear(q, k, v):\n    return q @ (k.transpose(-2, -1) @ v)\n")
    counts = flops(create("tiny", attention=f"{tmp_path}/mine.py:linear", img_size=(64, 32)), (64, 32))
    assert counts["attention"] == 2 * 2 * 9 * 64 * (4 * 64 + 2 * 32)


def test_the_length_that_reaches_each_task():
    """L of L^-alpha: the 128 patches (and class token) of ReID, and both resolutions of a multi-crop."""

    def lengths(*sizes: Any, attention: str = "relu", **given: Any) -> list[dict[int, int]]:
        model = create("vit_s", attention=attention, weights="random", depth=2, **given)
        return [flops(model, size)["lengths"] for size in sizes]

    assert lengths((256, 128), 224, 96) == [{129: 2}, {197: 2}, {37: 2}]
    assert lengths((256, 128), pool="gap") == [{128: 2}]
    assert lengths((256, 128), length="train") == [{197: 2}]
    assert lengths(224, attention="softmax") == lengths(224, attention="relu_sum") == [{}]
