"""Our vision transformers against timm's, and as timm models."""

import pytest
import timm
import torch
from torch import nn

import backbones.vit  # noqa: F401
from backbones.positions import sincos2d

VARIANTS = [
    {},
    {"stem": "conv", "attention": "relu"},
    {"stem": "conv_ibn", "attention": "sigmoid_sum", "ffn": "conv1d_bn", "gate": "sigmoid"},
    {"stem": "proj_bn_relu", "attention": "gelu", "ffn": "conv1d", "pool": "gap", "pos": "sincos2d", "alpha": 0.7},
    {"ffn": "mlp_tanh", "init": "bigvision", "cls_pos_embed": False, "pre_logits": True, "qk_norm": True},
    {"attention": "softplus", "ffn": "no_norm", "pool": "mean", "alpha": 0.5, "length": "train", "qk_norm": False},
]


def test_initialised_as_deit():
    model = timm.create_model("vit_ti", stem="conv", depth=2)
    for weight in [model.cls_token, model.pos_embed, *(m.weight for m in model.modules() if isinstance(m, nn.Linear))]:
        assert 0.017 < weight.std() < 0.023 or weight.numel() < 200
        assert weight.abs().max() <= 2
    assert all(not m.bias.any() for m in model.modules() if isinstance(m, nn.Linear))
    assert 0.017 < model.cls_token.std() < 0.024
    bound = 1 / (64 * 8 * 8) ** 0.5  # torch's default for the projection of 64 channels by 8 x 8 pixels
    assert 0.95 * bound < model.patch_embed.proj.weight.abs().max() <= bound


def test_initialised_as_big_vision():
    """Standard deviations by hand: uniform after Glorot sqrt(2 / (in + out)), LeCun 1 / sqrt(in)."""
    torch.manual_seed(0)
    D, tokens = 384, 196
    parts = {"init": "bigvision", "qk_norm": True, "gate": "sigmoid", "pre_logits": True}
    model = timm.create_model("vit_s", depth=1, num_classes=9, **parts)
    block = model.blocks[0]
    query, key, value = block.attn.qkv.weight.view(3, D, D)
    expected = [
        *((weight, D**-0.5) for weight in (query, key, value, block.attn.proj.weight, block.attn.gate.weight)),
        *((weight, (2 / (5 * D)) ** 0.5) for weight in (block.mlp.fc1.weight, block.mlp.fc2.weight)),
        *((bias, 1e-6) for bias in (block.mlp.fc1.bias, block.mlp.fc2.bias)),
        (model.patch_embed.proj.weight, (3 * 16 * 16) ** -0.5),
        (model.pre_logits.fc.weight, D**-0.5),
        (model.pos_embed, D**-0.5),
    ]
    for tensor, std in expected:
        assert abs(tensor.std() / std - 1) < 4 / (2 * tensor.numel()) ** 0.5, tuple(tensor.shape)
        assert abs(tensor.mean()) < 4 * std / tensor.numel() ** 0.5
    bound = 3**0.5 * D**-0.5
    assert query.abs().max() <= bound < query.abs().max() * 1.01  # uniform, and not over 3 D outputs
    assert model.patch_embed.proj.weight.abs().max() <= 2 * (3 * 16 * 16) ** -0.5 / 0.8796
    zeros = [model.head.weight, model.head.bias, model.cls_token, model.patch_embed.proj.bias, model.pre_logits.fc.bias]
    assert not any(tensor.any() for tensor in [*zeros, block.attn.qkv.bias, block.attn.proj.bias, model.norm.bias])
    assert model.pos_embed.shape == (1, tokens + 1, D)
    assert (block.attn.q_norm.weight == 1).all()


def test_a_class_token_without_position():
    images = torch.randn(2, 3, 64, 32)
    for pos in ("learned", "sincos2d"):
        model = timm.create_model("vit_tiny", cls_pos_embed=False, pos=pos, img_size=(64, 32)).eval()
        assert model.pos_embed.shape == (1, 8, 64)
        if pos == "sincos2d":
            with_one = timm.create_model("vit_tiny", pos=pos, img_size=(64, 32)).pos_embed
            assert torch.equal(with_one[0], torch.cat([torch.zeros(1, 64), model.pos_embed[0]]))
            assert torch.equal(model.pos_embed[0], sincos2d(4, 2, 64))
            assert not with_one.requires_grad
        stem = model.patch_embed(images)
        entry = model._pos_embed(stem)
        torch.testing.assert_close(entry[:, 0], model.cls_token[:, 0].expand(2, -1))
        torch.testing.assert_close(entry[:, 1:], stem.flatten(1, 2) + model.pos_embed)


@pytest.mark.parametrize("pool", ["cls", "gap"])
def test_the_layer_behind_the_pooling(pool):
    model = timm.create_model("vit_tiny", pre_logits=True, pool=pool, num_classes=3).eval()
    tokens = model.forward_features(torch.randn(2, 3, 64, 32))
    pooled = tokens[:, 0] if pool == "cls" else tokens.mean(1)
    expected = torch.tanh(pooled @ model.pre_logits.fc.weight.T + model.pre_logits.fc.bias)
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), expected)
    torch.testing.assert_close(model.forward_head(tokens), model.head(expected))


def test_length_train_counts_the_tokens_of_pretraining():
    model = timm.create_model("vit_tiny", attention="relu", length="train", train_size=(256, 128))
    assert model.blocks[0].attn.train_tokens == 129
