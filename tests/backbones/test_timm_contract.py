"""What timm promises of every model it makes, kept by ours: devices, types, tracing, first layers, pooling, pruning."""

import copy

import pytest
import timm
import torch

import backbones.vit  # noqa: F401
from backbones.weights.export import export
from tests.backbones.test_vit import VARIANTS

MODELS = [
    *(("vit_tiny", options) for options in VARIANTS),
    ("vit_tiny", {"stem": "conv_srelu", "attention": "relu", "alpha": "learned"}),
    ("volo_tiny", {}),
    ("volo_tiny", {"stem": "conv_gelu", "ffn": "conv1d_bn"}),
]


def make(name, options, **more):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, img_size=(64, 32), **options, **more)


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_weights_are_initialised_after_to_empty(name, options):
    """As at first: constants to the bit, random values by their spread."""
    fresh = make(name, options)
    model = make(name, options, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 7)
    model.init_weights()
    expected = fresh.state_dict()
    for key, tensor in model.state_dict().items():
        before = expected[key].float()
        if before.numel() == 1 or not before.std():
            assert torch.equal(tensor, expected[key]), key
        else:
            assert abs(tensor.std() / before.std() - 1) < 4 / before.numel() ** 0.5, key
    assert model(torch.rand(2, 3, 64, 32)).isfinite().all()


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_without_pooling_all_tokens_come_out_and_back_from_an_export(name, options, tmp_path):
    model = make(name, options, global_pool="").eval()
    images = torch.rand(2, 3, 64, 32)
    outputs = model(images)
    assert (outputs.ndim, outputs.shape[::2]) == (3, (2, 5))
    export(model, tmp_path / "out")
    again = timm.create_model(f"local-dir:{tmp_path}/out", pretrained=True).eval()
    assert again.global_pool == ""
    assert torch.equal(again(images), outputs)


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_stopping_early_and_pruning_change_no_map(name, options):
    model = make(name, options).eval()
    images = torch.rand(2, 3, 64, 32)
    final, maps = model.forward_intermediates(images)
    torch.testing.assert_close(final, model.forward_features(images))
    for index, expected in enumerate(maps):
        early, stopped = model.forward_intermediates(images, indices=[index], stop_early=True)
        torch.testing.assert_close(stopped, [expected])
        assert early.ndim == 3
        pruned = copy.deepcopy(model)
        pruned.prune_intermediate_layers([index])
        final, taken = pruned.forward_intermediates(images, indices=[index])
        torch.testing.assert_close(taken, [expected])
        torch.testing.assert_close(final, pruned.forward_features(images))
        (final.sum() + taken[0].sum()).backward()
        unused = [key for key, p in pruned.named_parameters() if p.requires_grad and p.grad is None]
        assert not unused, index


STEMS = {"patchify": "proj", "conv": "conv.0"}


@pytest.mark.parametrize("name", ["vit_tiny", "volo_tiny"])
@pytest.mark.parametrize("stem", STEMS)
def test_pretrained_weights_are_adapted_to_other_channels(name, stem, tmp_path):
    model = make(name, {"stem": stem}).eval()
    first = f"patch_embed.{STEMS[stem]}"
    assert model.default_cfg["first_conv"] == first
    export(model, tmp_path / "out")
    grey = timm.create_model(f"local-dir:{tmp_path}/out", pretrained=True, in_chans=1).eval()
    images = torch.rand(2, 1, 64, 32)
    torch.testing.assert_close(grey(images), model(images.expand(-1, 3, -1, -1)))
