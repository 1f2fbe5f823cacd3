"""Our vision transformers and VOLO: against timm's, as timm models, and their initial weights."""

from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.volo import VOLO as TimmVOLO
from torch import nn

import backbones.vit  # noqa: F401
from backbones.backbone import create
from backbones.positions import sincos2d
from backbones.pretrain.dino.loss import DinoHead
from backbones.volo import random_box
from backbones.weights.export import export
from tests.backbones import support
from transfer.core.errors import UsageError
from transfer.core.seeding import seed_torch


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


def test_sines_and_cosines_with_and_without_a_position_of_the_class_token():
    given = {"pos": "sincos2d", "img_size": (64, 32)}
    with_one, without = (timm.create_model("vit_tiny", cls_pos_embed=own, **given).pos_embed for own in (True, False))
    assert torch.equal(without[0], sincos2d(4, 2, 64))
    assert torch.equal(with_one[0], torch.cat([torch.zeros(1, 64), without[0]]))
    assert not with_one.requires_grad


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


@pytest.mark.parametrize(
    "options",
    [
        {"stem": "conv_ibn", "attention": "sigmoid_sum", "ffn": "conv1d_bn", "gate": "sigmoid"},
        {"stem": "proj_bn_relu", "attention": "gelu", "ffn": "conv1d", "pool": "gap", "pos": "sincos2d", "alpha": 0.7},
        {"ffn": "mlp_tanh", "init": "bigvision", "cls_pos_embed": False, "pre_logits": True, "qk_norm": True},
        {"stem": "conv_srelu", "attention": "relu", "alpha": "learned", "ffn": "no_norm"},
        {"model_name": "volo_tiny", "stem": "conv_gelu", "ffn": "conv1d_bn"},
    ],
)
def test_device_and_type_reach_every_part(options):
    given = {"model_name": "vit_tiny", "num_classes": 5, "device": "meta", "dtype": torch.bfloat16}
    tensors = timm.create_model(**given | options).parameters()
    assert {(tensor.device.type, tensor.dtype) for tensor in tensors} == {("meta", torch.bfloat16)}


FIRST_LAYERS = {"patchify": "proj", "conv": "conv.0"}


@pytest.mark.parametrize("name", ["vit_tiny", "volo_tiny"])
@pytest.mark.parametrize("stem", FIRST_LAYERS)
def test_pretrained_weights_are_adapted_to_other_channels(name, stem, tmp_path):
    backbone = support.tiny(name, stem=stem, classes=5)
    model = backbone.model
    assert model.default_cfg["first_conv"] == f"patch_embed.{FIRST_LAYERS[stem]}"
    export(backbone, tmp_path / "out")
    grey = timm.create_model(f"local-dir:{tmp_path}/out", pretrained=True, in_chans=1).eval()
    images = torch.rand(2, 1, 64, 32)
    torch.testing.assert_close(grey(images), model(images.expand(-1, 3, -1, -1)))


LANDSCAPE = (64, 96)
WIDE = torch.rand(3, 3, *LANDSCAPE, generator=torch.Generator().manual_seed(0))
TINY = {"layers": [1, 1, 1], "embed_dims": [32, 64, 64], "num_heads": [2, 2, 2]}


volo = partial(support.tiny, "volo_tiny", img_size=LANDSCAPE)


def test_equals_timm_with_the_same_weights():
    theirs = TimmVOLO(img_size=LANDSCAPE, num_classes=5, **TINY).eval()
    ours = volo(stem="conv", classes=5)
    ours.model.load_state_dict(theirs.state_dict())
    normal = (WIDE - ours.mean) / ours.std
    torch.testing.assert_close(ours.logits(WIDE), theirs(normal))
    torch.testing.assert_close(ours.pooled(WIDE), theirs.forward_features(normal)[:, 0])
    maps = theirs.forward_intermediates(normal, intermediates_only=True)
    torch.testing.assert_close(ours.maps(WIDE, [0, 1, -1]), maps)


@pytest.mark.parametrize(("name", "side"), [("vit_ti", 14), ("volo_d1", 14)])
def test_timm_takes_the_feature_maps(name: str, side: int) -> None:
    model = timm.create_model(name, features_only=True).eval()
    whole = timm.create_model(name).eval()
    model.load_state_dict({f"model.{key}": tensor for key, tensor in whole.state_dict().items()}, strict=False)
    images = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    maps = model(images)
    expected = whole.forward_intermediates(images, indices=model.out_indices, intermediates_only=True)
    assert maps[-1].shape[2:] == (side, side)
    torch.testing.assert_close(maps, expected)


def test_mixed_tokens():
    """By slices: the box comes from the batch in reverse, and the dense outputs go back."""
    backbone = volo(classes=5).train()
    model, boxes = backbone.model, set()
    for seed in range(6):
        torch.manual_seed(seed)
        box = random_box(4, 6)
        cls, dense = backbone.dense_logits(WIDE, box)
        top, left, bottom, right = box.tolist()
        boxes.add((top, left, bottom, right))
        x = model.patch_embed((WIDE - backbone.mean) / backbone.std).permute(0, 2, 3, 1)
        mixed = x.clone()
        mixed[:, 2 * top : 2 * bottom, 2 * left : 2 * right] = x.flip(0)[:, 2 * top : 2 * bottom, 2 * left : 2 * right]
        tokens = model.norm(model.forward_cls(model.forward_tokens(mixed)))
        torch.testing.assert_close(cls, model.head(tokens[:, 0]))
        grid = model.aux_head(tokens[:, 1:]).view(3, 4, 6, 5)
        back = grid.clone()
        back[:, top:bottom, left:right] = grid.flip(0)[:, top:bottom, left:right]
        torch.testing.assert_close(dense, back.view(3, 24, 5))
    assert len(boxes) > 3


@pytest.mark.parametrize("ffn", ["mlp", "relu", "conv1d_bn", "no_norm"])
def test_ffns_of_outlookers_and_transformers(ffn):
    backbone = volo(ffn=ffn, stem="conv_gelu", classes=3)
    model = backbone.model
    for block in (model.network[0][0], model.network[2][0], model.network[3][0]):
        x = torch.randn(2, 4, 6, block.norm1.normalized_shape[0])
        y = x + block.attn(block.norm1(x))
        normed = y if ffn == "no_norm" else F.layer_norm(y, y.shape[-1:])
        expected = y + block.mlp(normed.flatten(1, 2)).view(y.shape)
        torch.testing.assert_close(block(x), expected)
    assert type(model.post_network[0].mlp.act) is torch.nn.GELU
    with torch.autocast("cpu", torch.bfloat16):
        cls, dense = backbone.train().dense_logits(WIDE, torch.tensor([0, 1, 2, 3]))
        loss = cls.float().square().mean() + dense.float().square().mean()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in backbone.parameters())


def test_stochastic_depth_is_that_of_the_transformers():
    blocks = create("volo_d1", weights="random", drop_path=0.17).model.network
    rates = [[getattr(b.drop_path1, "drop_prob", 0.0) for b in stage] for stage in blocks if hasattr(stage, "__len__")]
    assert rates[0] == [0] * 4
    assert [rate for stage in rates[1:] for rate in stage] == pytest.approx([0.01 * i for i in range(4, 18)])
    assert not any(isinstance(m, timm.layers.DropPath) for m in create("volo_tiny", weights="random").modules())


def test_other_sizes_resample_the_position_grid(tmp_path):
    backbone = volo(img_size=64)
    images = torch.rand(2, 3, 128, 64)
    grid = F.interpolate(backbone.model.pos_embed.permute(0, 3, 1, 2), (8, 4), mode="bicubic", antialias=True)
    made_for_it = volo(img_size=(128, 64))
    made_for_it.model.load_state_dict(backbone.model.state_dict() | {"pos_embed": grid.permute(0, 2, 3, 1)})
    torch.testing.assert_close(backbone.pooled(images), made_for_it.pooled(images))
    export(backbone, tmp_path / "out")
    theirs = timm.create_model(f"local-dir:{tmp_path}/out", pretrained=True, img_size=(128, 64)).eval()
    torch.testing.assert_close(theirs(backbone.normalised(images)), backbone.pooled(images))
    with pytest.raises(ValueError, match=r"3 x 4 tokens .* cannot be halved"):
        backbone.pooled(torch.rand(1, 3, 24, 32))
    with pytest.raises(UsageError, match=r"size 64 x 40 .*: use multiples of 16, twice the patch size"):
        volo(img_size=(64, 40))


DRAWN = [
    ("cifar_ti4", 32, 10, "cls_token", [-0.0102966, -0.0386699, 0.0393295]),
    ("cifar_ti4", 32, 10, "head.weight", [0.0124830, -0.0368637, 0.0098682]),
    ("bigvision_s16", 224, 100, "patch_embed.proj.weight", [0.0509876, -0.0629354, 0.0528776]),
    ("bigvision_s16", 224, 100, "blocks.11.mlp.fc2.weight", [-0.0364752, 0.0206998, 0.0018045]),
    ("volo_d1", 224, 100, "head.weight", [0.0289741, 0.0155223, -0.0018291]),
    ("volo_d1", 224, 100, "aux_head.weight", [-0.0232140, -0.0059174, -0.0011012]),
    ("", 0, 0, "mlp.4.weight", [-0.0006698, -0.0030084, -0.0242116]),
]
"""The first values of tensors, the last of DINO's head. Without vector instructions other last digits are drawn."""


@pytest.mark.parametrize(("name", "size", "classes", "tensor", "values"), DRAWN)
def test_a_seed_draws_what_it_drew(name, size, classes, tensor, values):
    seed_torch(0)
    if name:
        model = create(name, weights="random", img_size=size, classes=classes).model
    else:
        model = DinoHead(8, 4, norm_last_layer=True)
    first = model.get_parameter(tensor).detach().flatten()[:3]
    torch.testing.assert_close(first, torch.tensor(values), atol=1e-6, rtol=0)
