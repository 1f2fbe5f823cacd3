"""VOLO with exchangeable parts, against timm's."""

from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.volo import VOLO as TimmVOLO

import backbones.vit  # noqa: F401
from backbones.backbone import create
from backbones.weights.export import export
from tests.backbones import support
from transfer.core.errors import UsageError, UserError

SIZE = (64, 96)
IMAGES = torch.rand(3, 3, *SIZE, generator=torch.Generator().manual_seed(0))
TINY = {"layers": [1, 1, 1], "embed_dims": [32, 64, 64], "num_heads": [2, 2, 2]}


tiny = partial(support.tiny, "volo_tiny", img_size=SIZE)


def test_equals_timm_with_the_same_weights():
    theirs = TimmVOLO(img_size=SIZE, num_classes=5, **TINY).eval()
    ours = tiny(stem="conv", classes=5)
    ours.model.load_state_dict(theirs.state_dict())
    normal = (IMAGES - ours.mean) / ours.std
    torch.testing.assert_close(ours.logits(IMAGES), theirs(normal))
    torch.testing.assert_close(ours.pooled(IMAGES), theirs.forward_features(normal)[:, 0])
    maps = theirs.forward_intermediates(normal, intermediates_only=True)
    torch.testing.assert_close(ours.maps(IMAGES, [0, 1, -1]), maps)
    x, maps = ours.model.forward_intermediates(normal, indices=1, norm=True)
    torch.testing.assert_close(x, ours.model.forward_features(normal))
    last = ours.maps(IMAGES, [-1])[0].permute(0, 2, 3, 1)
    torch.testing.assert_close(maps[0].permute(0, 2, 3, 1), ours.model.norm(last))


def test_logits_in_evaluation():
    backbone = tiny(classes=5)
    cls, dense, box = backbone.dense_logits(IMAGES)
    assert (cls.shape, dense.shape, box) == ((3, 5), (3, 24, 5), (0, 0, 0, 0))
    torch.testing.assert_close(backbone.logits(IMAGES), cls + 0.5 * dense.max(1).values)
    for without in (tiny(), create("tiny", classes=5)):
        with pytest.raises(UserError, match="no classifier of patch tokens"):
            without.dense_logits(IMAGES)


def test_mixed_tokens():
    """By slices: the box comes from the batch in reverse, and the dense outputs go back."""
    backbone = tiny(classes=5).train()
    model, boxes = backbone.model, set()
    for seed in range(6):
        torch.manual_seed(seed)
        cls, dense, box = backbone.dense_logits(IMAGES)
        torch.manual_seed(seed)
        again = backbone.dense_logits(IMAGES)
        assert again[2] == box
        assert torch.equal(again[1], dense)
        boxes.add(box)
        top, left, bottom, right = box
        x = model.patch_embed((IMAGES - backbone.mean) / backbone.std).permute(0, 2, 3, 1)
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
    backbone = tiny(ffn=ffn, stem="conv_gelu", classes=3)
    model = backbone.model
    for block in (model.network[0][0], model.network[2][0], model.network[3][0]):
        x = torch.randn(2, 4, 6, block.norm1.normalized_shape[0])
        y = x + block.attn(block.norm1(x))
        normed = y if ffn == "no_norm" else F.layer_norm(y, y.shape[-1:])
        expected = y + block.mlp(normed.flatten(1, 2)).view(y.shape)
        torch.testing.assert_close(block(x), expected)
    assert type(model.post_network[0].mlp.act) is torch.nn.GELU
    with torch.autocast("cpu", torch.bfloat16):
        cls, dense, _ = backbone.train().dense_logits(IMAGES)
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
    backbone = tiny(img_size=64)
    images = torch.rand(2, 3, 128, 64)
    grid = F.interpolate(backbone.model.pos_embed.permute(0, 3, 1, 2), (8, 4), mode="bicubic", antialias=True)
    made_for_it = tiny(img_size=(128, 64))
    made_for_it.model.load_state_dict(backbone.model.state_dict() | {"pos_embed": grid.permute(0, 2, 3, 1)})
    torch.testing.assert_close(backbone.pooled(images), made_for_it.pooled(images))
    export(backbone, tmp_path / "out")
    theirs = timm.create_model(f"local-dir:{tmp_path}/out", pretrained=True, img_size=(128, 64)).eval()
    torch.testing.assert_close(theirs(backbone.normalised(images)), backbone.pooled(images))
    with pytest.raises(ValueError, match=r"3 x 4 tokens .* cannot be halved"):
        backbone.pooled(torch.rand(1, 3, 24, 32))
    with pytest.raises(UsageError, match=r"size 64 x 40 .*: use multiples of 16, twice the patch size"):
        tiny(img_size=(64, 40))
