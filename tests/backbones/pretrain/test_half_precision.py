"""What trains, under autocast to 16 bits, against float64 statements of the same numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from backbones.attention import HeadNorm
from backbones.engine.learner import COLLAPSED_SPREAD, feature_spread
from backbones.engine.step import clip_grad_per_param
from backbones.pretrain.dino_head import DinoHead
from backbones.pretrain.dino_loss import cross_view_loss, teacher_log_probabilities, updated_center
from backbones.pretrain.losses import sigmoid_cross_entropy, soft_target_cross_entropy
from backbones.pretrain.mixup import mix
from backbones.pretrain.options import MixOptions
from backbones.runtime import dist
from backbones.runtime.dist import SyncBatchNorm
from tests.backbones.pretrain.dino_support import crops, dino_options, make
from tests.support import context

HALVES = [torch.bfloat16, torch.float16]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("classes", [1000, 21843])
def test_cross_entropy_of_mixed_and_smoothed_targets(dtype: torch.dtype, classes: int) -> None:
    logits = (5 * drawn(4, classes)).to(dtype).requires_grad_()
    options = MixOptions(mixing="timm", mixup=0.8, cutmix=0.0, mix_prob=1.0, switch_prob=0.0, smoothing=0.1)
    with torch.autocast("cpu", dtype):
        targets = mix(drawn(4, 3, 4, 4), torch.tensor([0, 7, 3, 99]), classes, options, seed=0, step=1)[1]
        loss = soft_target_cross_entropy(logits, targets)
    assert targets.dtype == loss.dtype == torch.float32
    wanted, z = targets.double().numpy(), logits.detach().double().numpy()
    assert wanted.sum(1) == pytest.approx([1.0] * 4, abs=1e-5)
    assert loss.item() == pytest.approx(-(wanted * log_softmax(z)).sum(1).mean(), rel=1e-6)
    (grad,) = torch.autograd.grad(loss, logits)
    exact = (wanted.sum(1, keepdims=True) * np.exp(log_softmax(z)) - wanted) / 4
    assert np.linalg.norm(grad.double().numpy() - exact) < 4 * torch.finfo(dtype).eps * np.linalg.norm(exact)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias", [-10.0, 0.0])
def test_the_sigmoid_loss_of_21843_classes(dtype: torch.dtype, bias: float) -> None:
    """A sum of 21,843 terms, at big_vision's first bias each of 4.5e-5."""
    logits = (0.1 * drawn(4, 21843) + bias).to(dtype)
    targets = nn.functional.one_hot(torch.tensor([5, 0, 21842, 77]), 21843).float()
    with torch.autocast("cpu", dtype):
        loss = sigmoid_cross_entropy(logits, targets)
    z, t = logits.double().numpy(), targets.double().numpy()
    exact = (t * np.log1p(np.exp(-z)) + (1 - t) * np.log1p(np.exp(z))).sum(1).mean()
    assert loss.item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_dinos_loss_and_center_of_half_precision_outputs(dtype: torch.dtype, size: float) -> None:
    """`size` 30: the prototypes' norms have grown, and outputs / 0.04 reach hundreds."""
    teacher, student = ((size * 0.3 * drawn(n, 3, 512, seed=n)).to(dtype) for n in (2, 4))
    center = 0.1 * drawn(512, seed=9)
    with torch.autocast("cpu", dtype):
        p = teacher_log_probabilities(teacher, center, 0.04).exp()
        loss = cross_view_loss(student, p, 0.1)
        moved = updated_center(center, teacher.float().mean((0, 1)), 0.9)
    t, s, c = (x.double().numpy() for x in (teacher, student, center))
    exact = np.exp(log_softmax((t - c) / 0.04))
    assert np.abs(p.double().numpy() - exact).sum(-1).max() < 1e-6 * max(size**1.5, 3)
    terms = [-(exact[i] * log_softmax(s[j] / 0.1)).sum(-1).mean() for i in range(2) for j in range(4) if i != j]
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-5)
    assert moved.dtype == torch.float32
    assert np.allclose(moved.double().numpy(), 0.9 * c + 0.1 * t.mean((0, 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_teachers_probabilities_are_those_of_float64(dtype: torch.dtype) -> None:
    """From its own normalised features, in prototypes near to them: cosines of 8 bits would move 1 % of them."""
    learner = make(dino_options(out_dim=512))
    seen: list[Tensor] = []
    layer = learner.teacher.head.last_layer
    layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad(), context(precision="bf16" if dtype == torch.bfloat16 else "fp16").autocast():
        layer.weight_v.copy_(0.1 * drawn(512, 256))
        learner.teacher(crops()[:2], still=[True])
        layer.weight_v[:8] = 2 * seen[0]
        outputs = learner.teacher(crops()[:2], still=[True])[1]
    v = layer.weight_v.double()
    exact = (seen[1].double() @ (v / v.norm(dim=1, keepdim=True)).T / 0.04).softmax(1)
    found = (outputs.double() / 0.04).softmax(1)
    assert (found - exact).abs().sum(1).max() < 1e-4


@pytest.mark.parametrize("dtype", HALVES)
def test_the_heads_normalisation_is_that_of_float64(dtype: torch.dtype) -> None:
    """Of features whose squares float16 does not hold, on either side."""
    head = DinoHead(8, 16, norm_last_layer=True)
    head.mlp = nn.Identity()
    for size in (1e-5, 1.0, 1e3):
        features = (size * drawn(4, 256)).to(dtype)
        seen: list[Tensor] = []
        head.last_layer.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[0]))
        with torch.autocast("cpu", dtype):
            head(features)
        exact = features.double() / features.double().norm(dim=1, keepdim=True)
        assert (seen[0].double() - exact).norm() < 1e-6 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("ranks", [1, 2])
def test_batch_norms_statistics(dtype: torch.dtype, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of inputs far from zero; `ranks` 2: another rank with the same rows."""
    x = (20 + drawn(16, 3, 9, 9)).to(dtype)
    norm = SyncBatchNorm(3)
    if ranks == 2:
        monkeypatch.setattr(dist, "world_size", lambda: 2)
        monkeypatch.setattr(dist.dist, "all_reduce", lambda total: total.mul_(2))
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        out = norm(x)
    rows = np.concatenate([x.double().transpose(0, 1).flatten(1).numpy()] * ranks, axis=1)
    assert norm.running_mean.dtype == torch.float32
    assert norm.running_mean.numpy() == pytest.approx(0.1 * rows.mean(1), rel=1e-6)
    assert norm.running_var.numpy() == pytest.approx(0.9 + 0.1 * rows.var(1, ddof=1), rel=1e-5)
    exact = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    found = out.detach().double().transpose(0, 1).flatten(1).numpy()
    assert out.dtype == dtype
    bound = 2 * max(torch.finfo(dtype).eps, 1e-5) * np.linalg.norm(exact[:, : found.shape[1]])
    assert np.linalg.norm(found - exact[:, : found.shape[1]]) < bound


def test_one_value_per_channel_has_no_variance() -> None:
    """n - 1 at n = 1 is refused, as torch does, and moves nothing."""
    norm = SyncBatchNorm(3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.ones(1, 3))
    assert norm.running_var.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", [nn.LayerNorm, HeadNorm])
def test_norms_of_tokens_queries_and_keys(dtype: torch.dtype, kind: type[nn.Module]) -> None:
    x = (3 + drawn(2, 2, 5, 64)).to(dtype)
    with torch.autocast("cpu", dtype), torch.no_grad():
        found = kind(64)(x).double()
    rows = x.double()
    exact = (rows - rows.mean(-1, keepdim=True)) / (rows.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt()
    assert (found - exact).norm() < torch.finfo(dtype).eps * exact.norm()


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4])
def test_the_spread_of_nearly_parallel_features(scale: float) -> None:
    """A collapse is told from 1e-6 on, where 1 - |mean|^2 has no digits left in float32."""
    features = 1 + scale * drawn(64, 128)
    directions = features.double() / features.double().norm(dim=1, keepdim=True)
    exact = float(1 - directions.mean(0).square().sum())
    assert float(feature_spread(features)) == pytest.approx(exact, rel=2e-3)
    assert (float(feature_spread(features)) < COLLAPSED_SPREAD) == (exact < COLLAPSED_SPREAD)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_norms_of_gradients_and_clipping(size: float) -> None:
    grads: list[Any] = [size * drawn(300, 40, seed=n) for n in range(3)]
    norms = np.array([np.linalg.norm(grad.double().numpy()) for grad in grads])
    total = nn.utils.get_total_norm(grads, foreach=True)
    assert total.item() == pytest.approx(np.sqrt((norms**2).sum()), rel=1e-6)
    clip_grad_per_param(grads, 0.5 * size * 100)
    clipped = [np.linalg.norm(grad.double().numpy()) for grad in grads]
    assert clipped == pytest.approx(list(np.minimum(norms, norms * 50 * size / (norms + 1e-6))), rel=1e-5)
