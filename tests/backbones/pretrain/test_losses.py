"""Every loss against its formula, written out for single images and classes."""

import math

import pytest
import torch
from torch.nn import functional

from backbones.pretrain.losses import (
    constant_loss,
    mixed_share,
    sigmoid_cross_entropy,
    soft_target_cross_entropy,
    token_label_losses,
)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("images", "classes"), [(1, 2), (4, 3), (5, 10)])
def test_cross_entropy_with_soft_targets_is_the_mean_of_sums(images: int, classes: int) -> None:
    logits, targets = drawn(images, classes), drawn(images, classes, seed=1).softmax(1)
    total = 0.0
    for row, wanted in zip(logits.tolist(), targets.tolist()):
        normaliser = math.log(sum(math.exp(value) for value in row))
        total -= sum(share * (value - normaliser) for share, value in zip(wanted, row))
    assert soft_target_cross_entropy(logits, targets).item() == pytest.approx(total / images, rel=1e-5)


def test_cross_entropy_of_one_hot_targets_is_torchs() -> None:
    logits, labels = drawn(6, 4), torch.tensor([0, 1, 2, 3, 0, 2])
    loss = soft_target_cross_entropy(logits, functional.one_hot(labels, 4).float())
    assert torch.allclose(loss, functional.cross_entropy(logits, labels))


@pytest.mark.parametrize(("images", "classes"), [(1, 1), (3, 4)])
def test_sigmoid_loss_sums_over_classes_and_averages_over_images(images: int, classes: int) -> None:
    logits, targets = drawn(images, classes), torch.rand(images, classes, generator=torch.Generator().manual_seed(2))
    total = 0.0
    for row, wanted in zip(logits.tolist(), targets.tolist()):
        for value, share in zip(row, wanted):
            yes = 1 / (1 + math.exp(-value))
            total -= share * math.log(yes) + (1 - share) * math.log(1 - yes)
    assert sigmoid_cross_entropy(logits, targets).item() == pytest.approx(total / images, rel=1e-5)


def test_losses_of_half_precision_logits_are_computed_in_full() -> None:
    logits, targets = drawn(4, 1000).bfloat16(), drawn(4, 1000, seed=1).softmax(1)
    for loss in (soft_target_cross_entropy, sigmoid_cross_entropy):
        assert loss(logits, targets).dtype == torch.float32
        assert torch.equal(loss(logits, targets), loss(logits.float(), targets))


def test_mix_token_shares_the_class_targets_and_leaves_the_tokens_their_own() -> None:
    images, tokens, classes, box = 3, 16, 5, (1, 0, 3, 3)
    class_logits, token_logits = drawn(images, classes), drawn(images, tokens, classes, seed=1)
    targets, of_tokens = drawn(images, classes, seed=2).softmax(1), drawn(images, tokens, classes, seed=3).softmax(2)
    assert mixed_share(box, tokens) == pytest.approx(6 / 16)
    first, second = 0.0, 0.0
    for image in range(images):
        wanted = 10 / 16 * targets[image] + 6 / 16 * targets[images - 1 - image]
        first -= (wanted * class_logits[image].log_softmax(0)).sum() / images
        for token in range(tokens):
            logs = token_logits[image, token].log_softmax(0)
            second -= (of_tokens[image, token] * logs).sum() / (images * tokens)
    found = token_label_losses(class_logits, token_logits, box, targets, of_tokens)
    assert torch.allclose(torch.stack(found), torch.stack([torch.as_tensor(first), torch.as_tensor(second)]))
    alike = targets[:, None].expand(-1, tokens, -1)
    without = token_label_losses(class_logits, token_logits, box, targets)
    assert torch.allclose(without[1], token_label_losses(class_logits, token_logits, box, targets, alike)[1])


@pytest.mark.parametrize("sigmoid", [False, True])
def test_no_constant_prediction_does_better(sigmoid: bool) -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    targets = functional.one_hot(labels, 4) * 0.9 + 0.1 / 4
    prior = targets.mean(0)
    loss = sigmoid_cross_entropy if sigmoid else soft_target_cross_entropy
    best = prior.logit() if sigmoid else prior.log()
    level = constant_loss(prior, sigmoid=sigmoid)
    assert loss(best.expand(6, 4), targets).item() == pytest.approx(level, rel=1e-5)
    for seed in range(20):
        other = best + 0.3 * drawn(4, seed=seed)
        assert loss(other.expand(6, 4), targets).item() > level


def test_constant_loss_of_equal_classes() -> None:
    assert constant_loss(torch.full((1000,), 1e-3), sigmoid=False) == pytest.approx(math.log(1000))
    assert constant_loss(torch.tensor([1.0, 0.0]), sigmoid=True) == 0
