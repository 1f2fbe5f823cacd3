"""The one interface around all models."""

import copy

import pytest
import torch

from backbones.backbone import create
from tests.backbones.support import IMAGES, tiny, users_file
from transfer.core.errors import UsageError, UserError


@pytest.mark.parametrize("pool", ["cls", "gap", "mean"])
def test_tokens(pool):
    backbone = tiny(pool=pool, stem="conv")
    model, entries = backbone.model, backbone.tokens(IMAGES)
    prefix = 0 if pool == "gap" else 1
    assert [entry.shape for entry in entries] == [(2, 8, 64)] + [(2, 8 + prefix, 64)] * 3
    normal = (IMAGES - backbone.mean) / backbone.std
    torch.testing.assert_close(entries[0], model.patch_embed.proj(model.patch_embed.conv(normal)).flatten(2).mT)
    torch.testing.assert_close(entries[1][:, prefix:], entries[0] + model.pos_embed[:, prefix:])
    torch.testing.assert_close(entries[3], model.blocks[1](model.blocks[0](entries[1])))
    final = backbone.tokens(IMAGES, norm=True)
    torch.testing.assert_close(final[2], model.norm(entries[2]))
    pooled = final[3][:, 0] if pool == "cls" else final[3][:, prefix:].mean(1)
    torch.testing.assert_close(backbone.pooled(IMAGES), pooled)


def test_maps_are_tokens_in_their_places_in_the_order_asked():
    backbone = tiny()
    entries = backbone.tokens(IMAGES)
    last, first = backbone.maps(IMAGES, [-1, 0])
    assert last.shape == (2, 64, 4, 2)
    torch.testing.assert_close(last.flatten(2).mT, entries[3][:, 1:])
    torch.testing.assert_close(first.flatten(2).mT, entries[2][:, 1:])
    with pytest.raises(ValueError, match=r"\[2\].*has 2"):
        backbone.maps(IMAGES, [2])


def test_layers_for_layer_decay():
    backbone = tiny(stem="conv", attention="relu", alpha="learned")
    layers = {name: backbone.layer_of(name) for name, _ in backbone.named_parameters()}
    assert layers["model.pos_embed"] == layers["model.cls_token"] == layers["model.patch_embed.conv.0.weight"] == 0
    assert layers["model.blocks.0.norm1.weight"] == layers["model.blocks.0.attn.alpha"] == 1
    assert layers["model.blocks.1.mlp.fc2.bias"] == 2
    assert layers["model.norm.weight"] == backbone.depth == 2
    assert backbone.layer_of("head.weight") == 3
    assert backbone.layer_of("blocks.1.norm2.bias") == 2


def test_the_fingerprint_is_of_weights_and_function():
    first = tiny()
    print_ = first.fingerprint
    assert print_ == tiny().fingerprint == copy.deepcopy(first).fingerprint
    assert len({print_, tiny(alpha=0.5, attention="relu").fingerprint, tiny(attention="relu").fingerprint}) == 3
    assert tiny(mean=(0.5, 0.5, 0.5)).fingerprint != print_
    assert tiny(drop_path=0.2).fingerprint == print_
    with torch.no_grad():
        first.model.norm.bias[3] += 1e-7
    assert first.fingerprint != print_


def test_drop_path_reaches_the_blocks():
    rates = [getattr(b.drop_path1, "drop_prob", 0.0) for b in create("tiny", depth=5, drop_path=0.2).model.blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


OF_TIMM = {"resnet18": (32, 512), "convnext_atto": (32, 320), "deit_tiny_patch16_224": (16, 192)}


@pytest.mark.parametrize("name", OF_TIMM)
def test_models_of_timm(name):
    stride, dims = OF_TIMM[name]
    backbone = create(name, weights="random", img_size=(128, 64)).eval()
    images = torch.rand(1, 3, 128, 64)
    assert (backbone.dim, backbone.stride) == (dims, stride)
    assert backbone.pooled(images).shape == (1, dims)
    assert backbone.maps(images, [-1])[0].shape == (1, dims, 128 // stride, 64 // stride)
    layers = [backbone.layer_of(parameter) for parameter, _ in backbone.named_parameters()]
    assert layers[0] == 0
    assert backbone.layer_of("head.weight") == backbone.depth + 1 >= max(layers)


def test_a_users_whole_model(tmp_path):
    file = users_file(tmp_path)
    backbone = create(f"{file}:Net", img_size=(64, 32))
    assert (backbone.dim, backbone.stride, backbone.spec.name) == (6, 8, "Net")
    torch.testing.assert_close(backbone.pooled(IMAGES), backbone.model((IMAGES - backbone.mean) / backbone.std))
    with pytest.raises(UserError, match="pooled features only"):
        backbone.maps(IMAGES, [-1])
    assert create(f"{file}:resnet").pooled(IMAGES).shape == (2, 512)
    with pytest.raises(UserError, match=r"gives a tensor \[1, 6, 28, 28\]; features are wanted, floats \[1, D\]"):
        create(f"{file}:maps")
    with pytest.raises(UserError, match=r"must return an nn\.Module"):
        create(f"{file}:number")
    with pytest.raises(UsageError, match="`stem` does not apply"):
        create(f"{file}:Net", stem="conv")


def test_sizes_that_do_not_fit():
    with pytest.raises(UsageError, match=r"size 100 x 64 .*: use multiples of 16, the patch size"):
        create("tiny", img_size=(100, 64))
    with pytest.raises(ValueError, match="100 x 64 pixels"):
        tiny().pooled(torch.rand(1, 3, 100, 64))
    with pytest.raises(ValueError, match=r"float in \[0, 1\] or uint8, not torch\.int64"):
        tiny().pooled(torch.zeros(1, 3, 64, 32, dtype=torch.int64))
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(tiny().eval().normalised(images), tiny().eval().normalised(images.float() / 255))
