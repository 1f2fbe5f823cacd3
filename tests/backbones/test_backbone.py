"""From names to specifications, and the one interface around all models."""

import copy
import json

import pytest
import timm
import torch

from backbones.backbone import create
from backbones.build import build_model
from backbones.spec import IMAGENET_MEAN, override, resolve, timm_names
from backbones.weights.locate import Located
from tests.backbones.support import IMAGES, tiny, users_file
from transfer.core.errors import UsageError, UserError
from transfer.core.settings import config_names


def test_timm_names_are_timms():
    # tests register models of their own, too
    theirs = {name for name in timm.list_models() if timm.models.model_entrypoint(name).__module__.startswith("timm.")}
    assert theirs <= set(timm_names())


@pytest.mark.parametrize("name", config_names("backbones"))
def test_every_shipped_backbone_builds(name):
    spec = resolve(name)
    with torch.device("meta"):
        model, built, loaded, *_ = build_model(spec, Located(None, "random"), (256, 128))
        assert model(torch.zeros(1, 3, 256, 128)).shape == (1, model.num_features)
    assert built.mean == ((0.5, 0.5, 0.5) if name.startswith("bigvision") else IMAGENET_MEAN)
    assert loaded is None
    assert json.loads(json.dumps(spec.as_dict())) == spec.as_dict()


@pytest.mark.parametrize(("arch", "dim", "heads", "hidden"), [("vit_s", 384, 6, 1536), ("vit_l", 1024, 16, 4096)])
def test_models_of_big_vision(arch, dim, heads, hidden):
    for name, attention in (("bigvision_s16", "softmax"), ("bigvision_s16_relu", "relu")):
        spec = resolve(name, arch=arch, patch=32, pool="gap")
        with torch.device("meta"):
            model, *_ = build_model(spec, Located(None, "random"))
        block = model.blocks[0]
        assert (spec.attention, model.cls_token, model.pos_embed.shape) == (attention, None, (1, 49, dim))
        assert (model.init, spec.ffn, spec.cls_pos_embed) == ("bigvision", "mlp_tanh", False)
        assert (block.attn.num_heads, block.mlp.fc1.out_features) == (heads, hidden)
        assert [*block.attn.q_norm.state_dict()] == ["weight"]


def test_overrides_win_and_none_and_config_leave_things_alone():
    spec = resolve("dino_s16", stem="conv", attention="relu", alpha="0.5", depth=None, weights="config", load="partial")
    assert (spec.stem, spec.attention, spec.alpha, spec.depth, spec.load) == ("conv", "relu", 0.5, 12, "partial")
    assert spec.weights == "timm:vit_small_patch16_224.dino"
    assert override(spec, weights="random", mean=[0.5, 0.5, 0.5]).mean == (0.5, 0.5, 0.5)


def test_qk_norm_follows_the_attention_unless_it_was_said(tmp_path):
    assert resolve("dino_s16_relu", attention="softmax").qk_norm is False
    assert override(resolve("dino_s16"), attention="gelu").qk_norm is True
    assert override(resolve("dino_s16", qk_norm=True), attention="relu").qk_norm is True
    (tmp_path / "mine.yaml").write_text("arch: vit_s\nattention: relu\nqk_norm: true\n")
    assert resolve(str(tmp_path / "mine.yaml"), attention="softmax").qk_norm is True


def test_identity_is_of_contents_not_of_places(tmp_path):
    specs = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "stem.py").write_text("class S: pass")
        (tmp_path / folder / "mine.yaml").write_text("arch: vit_tiny\nstem: stem.py:S\nweights: random\n")
        specs.append(resolve(str(tmp_path / folder / "mine.yaml")))
    assert specs[0].stem != specs[1].stem
    assert specs[0].identity() == specs[1].identity()
    (tmp_path / "b" / "stem.py").write_text("class S: x = 1")
    assert resolve(str(tmp_path / "b" / "mine.yaml")).identity() != specs[0].identity()
    assert str(tmp_path) not in json.dumps(specs[0].identity())
    assert specs[0].files.keys() == {"stem"}
    replaced = override(specs[0], stem="conv")
    assert (replaced.files, replaced.identity()["stem"]) == ({}, "3Conv+3BN+3ReLU+1Proj@2,1,1,8")


def test_a_yaml_of_the_users(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("arch: vit_tiny\nmean: [0.5, 0.5, 0.5]\nweights: out\n")
    assert resolve(str(file)).weights == "out"
    (tmp_path / "out").mkdir()
    spec = resolve(str(file))
    assert (spec.name, spec.mean, spec.weights) == ("mine", (0.5, 0.5, 0.5), str(tmp_path / "out"))
    file.write_text("arch: resnet18\n")
    assert resolve(str(file)).weights == "weights/mine"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("arch: vit_tiny\nstemm: conv\n", r"mine\.yaml: unknown key 'stemm'; did you mean 'stem'"),
        ("arch: vit_tny\n", "unknown architecture 'vit_tny'; did you mean .*'vit_tiny'"),
        ("stem: conv\n", "`arch` is missing"),
        ("arch: vit_tiny\nstem: 3Conv+3BM+1Proj\n", r"mine\.yaml: .*'3BM' is not"),
        ("arch: vit_tiny\npool: max\n", "must be one of cls, gap, mean"),
        ("arch: vit_tiny\nalpha: big\n", "`alpha: big` cannot be read"),
        ("arch: volo_d1\nattention: relu\n", "`attention` does not apply to volo_d1; of ours vit_ti"),
        ("arch: volo_d1\npatch: 2\n", "`patch: 2`: volo_d1 takes 4, 8 or 16"),
    ],
)
def test_errors_name_the_file_and_what_mends_them(content, said, tmp_path):
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(UsageError, match=said):
        resolve(str(tmp_path / "mine.yaml"))


NEAR = {"dino_s16_konvstem": "dino_s16_convstem", "resnet81": "resnet18", "vitt_s": "vit_s", "tyny": "tiny"}


@pytest.mark.parametrize(("name", "near"), NEAR.items())
def test_unknown_names(name, near):
    with pytest.raises(UsageError, match=f"unknown backbone '{name}'; did you mean .*'{near}'"):
        resolve(name)


@pytest.mark.parametrize("about", [{"smoke": False}, {"smoke": True}, {"subset": 5}, None])
def test_weights_pretrained_here_take_the_place_of_released_ones(about, tmp_path, monkeypatch):
    taken = about == {"smoke": False}
    monkeypatch.chdir(tmp_path)
    for name in ("dino_s16", "vit_small_patch16_224", "tiny"):
        (tmp_path / "weights" / name).mkdir(parents=True)
        if about is not None:
            (tmp_path / "weights" / name / "pretrain.json").write_text(json.dumps(about))
    assert resolve("dino_s16").weights == ("weights/dino_s16" if taken else "timm:vit_small_patch16_224.dino")
    assert resolve("vit_small_patch16_224").weights == ("weights/vit_small_patch16_224" if taken else "timm")
    assert resolve("dino_s16", weights="timm:vit_small_patch16_224.dino").weights.startswith("timm:")
    assert resolve("tiny").weights == "random"


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
    assert layers == [backbone.layer_of(parameter) for parameter, _ in backbone.model.named_parameters()]
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
    with pytest.raises(ValueError, match="100 x 64 pixels"):
        tiny().pooled(torch.rand(1, 3, 100, 64))
    with pytest.raises(ValueError, match=r"float in \[0, 1\] or uint8, not torch\.int64"):
        tiny().pooled(torch.zeros(1, 3, 64, 32, dtype=torch.int64))
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(tiny().eval().normalised(images), tiny().eval().normalised(images.float() / 255))
