import math

import pytest
import torch

from backbones.backbone import Backbone
from backbones.diagnostics.stem import stem_facts
from tests.backbones.diagnostics.support import IMAGES, tiny


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
