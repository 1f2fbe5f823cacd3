"""Classifiers on backbones: fresh, trained, exported, dropped."""

import pytest
import timm
import torch
from safetensors.torch import load_file

import backbones.vit  # noqa: F401
from backbones.backbone import create
from backbones.flops import flops
from backbones.weights.export import export
from tests.backbones.support import IMAGES, SIZE, hub, tiny, users_file
from transfer.core.errors import UserError


def test_logits_are_a_linear_function_of_the_features():
    backbone = tiny(classes=7, stem="conv", pool="gap")
    assert (backbone.classes, backbone.dim, backbone.untrained) == (7, 64, [])
    head = backbone.model.head
    head.bias.data.normal_()
    torch.testing.assert_close(backbone.logits(IMAGES), backbone.pooled(IMAGES) @ head.weight.T + head.bias)
    assert backbone.layer_of("model.head.weight") == backbone.depth + 1 == 3


def test_a_fresh_classifier_changes_nothing_else():
    plain, headed = tiny(), tiny(classes=1000)
    assert plain.classes is None
    torch.testing.assert_close(headed.pooled(IMAGES), plain.pooled(IMAGES), atol=0, rtol=0)
    assert flops(headed, SIZE) == flops(plain, SIZE)
    assert 0.019 < headed.model.head.weight.std() < 0.021
    assert not headed.model.head.bias.any()
    with pytest.raises(UserError, match="tiny has no classifier; create"):
        plain.logits(IMAGES)


def test_loading_makes_another(tmp_path):
    backbone = tiny(classes=5)
    export(backbone, tmp_path / "out")
    fresh = create("tiny", weights=str(tmp_path / "out"), img_size=SIZE, classes=5)
    assert fresh.untrained == []
    assert not torch.equal(fresh.model.head.weight, backbone.model.head.weight)
    assert torch.equal(fresh.model.norm.weight, backbone.model.norm.weight)
    with_more = create("tiny", weights=str(tmp_path / "out"), img_size=SIZE, classes=9, load="partial")
    assert (with_more.classes, with_more.untrained) == (9, [])


@pytest.mark.parametrize("load", ["strict", "partial"])
def test_weights_without_one(load, tmp_path):
    with pytest.raises(UserError, match="tiny: no trained classifier in random weights"):
        tiny(classes="trained")
    export(tiny(), tmp_path / "out")
    with pytest.raises(UserError, match=r"no trained classifier in .*model\.safetensors; set --weights"):
        tiny(classes="trained", weights=str(tmp_path / "out"), load=load)


def test_the_classifier_of_timms_released_weights(tmp_path, monkeypatch):
    theirs = timm.create_model("resnet18.a1_in1k").eval()
    hub(tmp_path, monkeypatch, "timm/resnet18.a1_in1k", theirs.state_dict())
    images = torch.rand(1, 3, 64, 64)
    trained = create("resnet18.a1_in1k", classes="trained").eval()
    assert (trained.classes, trained.weights_id) == (1000, "timm:resnet18.a1_in1k")
    torch.testing.assert_close(trained.logits(images), theirs((images - trained.mean) / trained.std))
    fresh = create("resnet18.a1_in1k", classes=1000).eval()
    torch.testing.assert_close(fresh.pooled(images), trained.pooled(images))
    assert not torch.equal(fresh.model.fc.weight, theirs.fc.weight)


@pytest.mark.parametrize("made", ["Net", "resnet"])
def test_beside_a_users_whole_model(made, tmp_path):
    name, weights = f"{users_file(tmp_path)}:{made}", str(tmp_path / "out")
    backbone = create(name, img_size=SIZE, classes=4, weights="random").eval()
    expected = backbone.pooled(IMAGES) @ backbone.head.weight.T + backbone.head.bias
    torch.testing.assert_close(backbone.logits(IMAGES), expected)
    assert backbone.layer_of("head.weight") == backbone.depth + 1
    assert "head.weight" in dict(backbone.named_parameters())
    export(backbone, tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")["_classifier.weight"].shape == (4, backbone.dim)
    again = create(name, weights=weights, img_size=SIZE, classes="trained").eval()
    assert (again.classes, again.fingerprint) == (4, backbone.fingerprint)
    assert torch.equal(again.logits(IMAGES), backbone.logits(IMAGES))
    without = create(name, weights=weights, img_size=SIZE).eval()
    assert without.head is None
    assert torch.equal(without.pooled(IMAGES), backbone.pooled(IMAGES))
    fresh = create(name, weights=weights, img_size=SIZE, classes=4)
    assert not torch.equal(fresh.head.weight, backbone.head.weight)
    with pytest.raises(UserError, match="no trained classifier"):
        create(name, img_size=SIZE, classes="trained", weights="random")
