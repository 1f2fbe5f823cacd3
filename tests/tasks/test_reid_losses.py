import math

import pytest
import torch

from tasks.reid.training import BNNeck, batch_hard_triplet


def plain(features: list[list[float]], labels: list[int], margin: float | None) -> float:
    """The definition, with loops."""
    total = 0.0
    for i, anchor in enumerate(features):
        positives = [math.dist(anchor, other) for j, other in enumerate(features) if labels[j] == labels[i]]
        negatives = [math.dist(anchor, other) for j, other in enumerate(features) if labels[j] != labels[i]]
        gap = max(positives) - min(negatives)
        total += math.log1p(math.exp(gap)) if margin is None else max(gap + margin, 0.0)
    return total / len(features)


@pytest.mark.parametrize("margin", [None, 0.0, 0.3, 2.0])
@pytest.mark.parametrize(("identities", "instances", "dim"), [(2, 2, 3), (4, 4, 8), (5, 3, 1)])
def test_the_loss_is_its_definition(identities: int, instances: int, dim: int, margin: float | None) -> None:
    generator = torch.Generator().manual_seed(identities)
    features = torch.randn(identities * instances, dim, generator=generator, dtype=torch.float64)
    labels = torch.arange(identities).repeat_interleave(instances)
    order = torch.randperm(len(labels), generator=generator)
    loss = batch_hard_triplet(features[order], labels[order], margin)
    assert loss.item() == pytest.approx(plain(features.tolist(), labels.tolist(), margin), abs=1e-9)


@pytest.mark.parametrize("offset", [10.0, 100.0, 1000.0])
def test_an_offset_of_all_features_changes_neither_loss_nor_gradient(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    near = 0.05 * torch.randn(32, 384, generator=generator) + offset
    labels = torch.arange(8).repeat_interleave(4)
    found, exact = (near.clone().to(dtype).requires_grad_() for dtype in (torch.float32, torch.float64))
    for rows in (found, exact):
        batch_hard_triplet(rows, labels).backward()
    assert found.grad is not None
    assert exact.grad is not None
    assert (found.grad - exact.grad).norm() < 1e-4 * exact.grad.norm()


def test_equal_features_give_ln_2_and_finite_gradients() -> None:
    features = torch.ones(4, 3, requires_grad=True)
    loss = batch_hard_triplet(features, torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2), abs=1e-6)
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()


def test_the_neck_standardises_and_classifies_without_shift_or_bias() -> None:
    neck, features = BNNeck(5, 7), torch.randn(16, 5) * 3 + 2
    after, logits = neck(features)
    expected = (features - features.mean(0)) / (features.var(0, unbiased=False) + 1e-5).sqrt()
    assert torch.allclose(after, expected, atol=1e-5)
    assert torch.allclose(logits, after @ neck.classifier.weight.T)
    trained = {name for name, parameter in neck.named_parameters() if parameter.requires_grad}
    assert trained == {"norm.weight", "classifier.weight"}
    assert 5e-4 < neck.classifier.weight.std().item() < 2e-3


def test_the_neck_computes_in_fp32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        after, logits = BNNeck(5, 7)(torch.randn(16, 5).bfloat16())
    assert after.dtype == logits.dtype == torch.float32
