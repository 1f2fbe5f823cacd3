import torch
from torch import nn

from backbones.pretrain.dino.loss import (
    DinoHead,
    WeightNormLinear,
    cross_view_loss,
    teacher_log_probabilities,
)


def test_large_outputs_stay_finite_in_half_precision() -> None:
    student = torch.randn(3, 2, 50, dtype=torch.bfloat16) * 100
    probabilities = teacher_log_probabilities(student[:2], torch.zeros(50), 0.04).exp()
    loss = cross_view_loss(student, probabilities, 0.1)
    assert torch.isfinite(loss)
    assert loss.dtype == torch.float32


def test_outputs_are_cosines_while_the_norms_are_fixed() -> None:
    torch.manual_seed(0)
    head = DinoHead(24, 40, norm_last_layer=True)
    nn.init.normal_(head.last_layer.weight_v, std=3.0)
    features = torch.randn(6, 24)
    hidden = head.mlp(features)
    cosines = nn.functional.cosine_similarity(hidden[:, None], head.last_layer.weight_v[None], dim=-1)
    assert torch.allclose(head(features), cosines, atol=1e-5)
    assert [name for name, _ in head.last_layer.named_parameters()] == ["weight_v"]


def test_the_layer_is_torchs_weight_norm() -> None:
    torch.manual_seed(0)
    ours, x = WeightNormLinear(7, 5, fixed_norm=False), torch.randn(3, 7, requires_grad=True)
    torchs = nn.utils.parametrizations.weight_norm(nn.Linear(7, 5, bias=False))
    with torch.no_grad():
        torchs.parametrizations.weight.original0.copy_(ours.weight_g)
        torchs.parametrizations.weight.original1.copy_(ours.weight_v)
    for layer in (ours, torchs):
        layer(x).square().sum().backward()
    assert torch.allclose(ours(x), torchs(x), atol=1e-6)
    assert torch.allclose(ours.weight_v.grad, torchs.parametrizations.weight.original1.grad, atol=1e-5)
    assert torch.allclose(ours.weight_g.grad, torchs.parametrizations.weight.original0.grad, atol=1e-5)


def test_the_parts_are_those_of_the_paper() -> None:
    head = DinoHead(384, 65536, norm_last_layer=True)
    assert [layer.weight.shape for layer in head.mlp if isinstance(layer, nn.Linear)] == [
        (2048, 384), (2048, 2048), (256, 2048),
    ]  # fmt: skip
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in head.modules())
    assert head.last_layer.weight_v.shape == (65536, 256)
    for layer in head.mlp:
        if isinstance(layer, nn.Linear):
            assert abs(layer.weight.std().item() - 0.02) < 1e-3
            assert not layer.bias.any()


def test_features_of_zero_give_finite_outputs_in_half_precision() -> None:
    head = DinoHead(8, 4, norm_last_layer=True)
    with torch.autocast("cpu", torch.float16):
        outputs = head(torch.zeros(2, 8))
    assert torch.isfinite(outputs).all()
