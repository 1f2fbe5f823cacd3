"""Finding weights and getting them into models."""

import hashlib
import os
import pickle
from pathlib import Path

import pytest
import timm
import torch

import backbones.vit  # noqa: F401
from backbones.backbone import create
from backbones.spec import resolve
from backbones.weights.export import export
from backbones.weights.locate import changed_parts, find_weights
from tests.backbones.support import IMAGES, SIZE, hub
from transfer.core.errors import UsageError, UserError


def source(seed=1, **options):
    torch.manual_seed(seed)
    return timm.create_model("vit_tiny", **({"num_classes": 0, "img_size": SIZE} | options)).eval()


def features(model, images=IMAGES):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return model((images - mean) / std)


def check(path: Path | str, model, **options):
    backbone = create("tiny", weights=str(path), img_size=SIZE, **options).eval()
    torch.testing.assert_close(backbone.pooled(IMAGES), features(model))
    return backbone


def test_a_distillation_token_is_dropped_where_that_is_allowed(tmp_path):
    model, file, token = source(), tmp_path / "released.pth", torch.ones(1, 1, 64)
    state = model.state_dict() | {"dist_token": token, "head_dist.weight": torch.zeros(1000, 64)}
    state["pos_embed"] = torch.cat([state["pos_embed"][:, :1], token, state["pos_embed"][:, 1:]], dim=1)
    torch.save({"model": state}, file)
    for options in ({}, {"load": "partial"}):
        with pytest.raises(UserError, match="dist_token"):
            check(file, model, weights_size=SIZE, **options)
    backbone = check(file, model, weights_size=SIZE, load="partial", allow_dropped=True)
    assert backbone.weights_id == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


def test_strict_lists_what_does_not_fit(tmp_path):
    torch.save(source().state_dict() | {"extra": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(UserError) as failure:
        create("tiny", stem="conv", weights=str(tmp_path / "a.pth"), img_size=SIZE)
    said = str(failure.value)
    assert "missing: patch_embed.conv.0.weight" in said
    assert "more" in said
    assert "unexpected: extra" in said
    assert "of another shape: patch_embed.proj.weight (64, 3, 16, 16) for (64, 64, 8, 8)" in said
    assert "--load partial" in said


def test_what_the_name_leaves_open_comes_from_the_export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nstem: conv\nattention: relu\n")
    before = resolve("mine.yaml")
    parts = {"qk_norm": False, "pool": "mean", "pre_logits": True, "alpha": 0.5, "train_size": (64, 32)}
    made = source(stem="conv", attention="relu", **parts)
    export(made, tmp_path / "weights" / "mine")
    spec = resolve("mine.yaml")
    assert (before.qk_norm, before.pool, before.pre_logits) == (True, "cls", False)
    assert {name: getattr(spec, name) for name in parts} == parts
    backbone = create("mine.yaml", img_size=SIZE).eval()
    torch.testing.assert_close(backbone.pooled(IMAGES), features(made))
    assert resolve("mine.yaml", weights="weights/mine/model.safetensors").qk_norm is False
    for weights, expected in (("config", (False, "mean", True, 0.5)), ("random", (True, "cls", False, 1.0))):
        spec = resolve("mine.yaml", load="partial", weights=weights)
        assert (spec.qk_norm, spec.pool, spec.pre_logits, spec.alpha) == expected


@pytest.mark.parametrize("there", [{"attention": "relu", "qk_norm": False}, {"pre_logits": True}, {"ffn": "mlp_tanh"}])
def test_what_is_chosen_must_be_that_of_the_export(there, tmp_path):
    export(source(**there), tmp_path / "out")
    key = next(iter(there))
    chosen = {"attention": "softmax", "pre_logits": False, "ffn": "mlp"}[key]
    here = {key: chosen}
    with pytest.raises(UserError, match=f"{key} {there[key]} there, {chosen} here"):
        find_weights(resolve("tiny", weights=str(tmp_path / "out"), **here))
    backbone = create("tiny", weights=str(tmp_path / "out"), img_size=SIZE, load="partial", **here)
    assert getattr(backbone.spec, key) == chosen
    assert backbone.untrained == []


def test_partial_keeps_what_the_export_names_unless_it_is_told_otherwise(tmp_path):
    made = {"stem": "conv", "attention": "relu", "ffn": "mlp", "qk_norm": True, "gate": "silu", "pool": "gap"}
    export(source(**made), tmp_path / "out")
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nstem: patchify\nattention: softmax\nffn: mlp_tanh\n")
    given = {"weights": str(tmp_path / "out"), "load": "partial"}
    for name in ("tiny", str(tmp_path / "mine.yaml")):
        spec = resolve(name, **given, length="image")
        assert {key: getattr(spec, key) for key in made} == made
        assert spec.length == "image"
        assert changed_parts(spec) == []
        spec = resolve(name, **given, attention="softmax", stem="patchify")
        assert (spec.attention, spec.stem, spec.gate, spec.qk_norm) == ("softmax", "patchify", "silu", True)
        assert changed_parts(spec) == ["stem conv there, patchify here", "attention relu there, softmax here"]
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nattention: softmax\nweights: out\nload: partial\n")
    spec = resolve(str(tmp_path / "mine.yaml"))  # who says `partial` says the part as well
    assert (spec.attention, spec.stem) == ("softmax", "conv")


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("made-by-a-pickle",))


@pytest.mark.parametrize("content", ["torn", "pickle", "list", "safetensors"])
def test_damaged_and_dangerous_files(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ("a.safetensors" if content == "safetensors" else "a.pth")
    torch.save([1, 2] if content == "list" else source().state_dict(), file)
    if content in ("torn", "safetensors"):
        file.write_bytes(file.read_bytes()[:-2000])
    elif content == "pickle":
        file.write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
    with pytest.raises(UserError, match=str(file)) as caught:
        create("tiny", weights=str(file))
    assert "weights_only" not in str(caught.value), "torch's advice is to run what the file holds"
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_timms_released_weights_from_the_cache(tmp_path, monkeypatch):
    theirs = timm.create_model("vit_small_patch16_224.dino", depth=1).eval()
    hub(tmp_path, monkeypatch, "timm/vit_small_patch16_224.dino", theirs.state_dict())
    images = torch.rand(1, 3, 224, 224)
    backbone = create("dino_s16", depth=1).eval()
    assert backbone.weights_id == "timm:vit_small_patch16_224.dino"
    torch.testing.assert_close(backbone.pooled(images), features(theirs, images))
    said = "dino: positions 14 x 14 -> 16 x 8; newly initialized: patch_embed; dropped: patch_embed"
    assert str(create("dino_s16", depth=1, img_size=(256, 128), stem="conv", load="partial").loaded).endswith(said)
    assert not str(backbone.loaded)
    with pytest.raises(UserError, match=r"missing: blocks\.1\."):
        create("dino_s16", depth=2)


def test_a_repository_of_the_hub(tmp_path, monkeypatch):
    model = source(stem="conv")
    export(model, tmp_path / "out")
    config = (tmp_path / "out" / "config.json").read_text()
    hub(tmp_path / "cache", monkeypatch, "me/mine", model.state_dict(), config)
    backbone = create("hf-hub:me/mine", img_size=SIZE).eval()
    torch.testing.assert_close(backbone.pooled(IMAGES), features(model))
    assert backbone.spec.name == "mine"
    check("hf-hub:me/mine", model, stem="conv")


@pytest.mark.parametrize(
    ("name", "weights", "kind", "said"),
    [
        ("tiny", "randm", UserError, "did you mean 'random'"),
        ("tiny", "weights/none", UserError, "pretrain RECIPE --backbone tiny --dataset DATA"),
        ("vit_s", "timm", UsageError, "name the weights, as in timm:"),
        ("tiny", "timm:vit_small_patch16_224.dinoo", UsageError, "did you mean 'vit_small_patch16_224.dino'"),
        ("dino_s16", "config", UserError, "hf download timm/vit_small_patch16_224.dino"),
        ("tiny", "hf-hub:me/mine@v1", UserError, "hf download me/mine --revision v1"),
        ("vit_small_patch16_224", {"weights_key": "a"}, UsageError, "no effect on timm:vit_small"),
    ],
)
def test_weights_that_are_not_there(name, weights, kind, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(kind, match=said):
        find_weights(resolve(name, **(weights if isinstance(weights, dict) else {"weights": weights})))
