import random

import numpy as np
import pytest
import torch
from timm.data.mixup import Mixup

from backbones.errors import UsageError
from backbones.pretrain.losses import mix, mixup_share
from backbones.pretrain.options import MixOptions
from backbones.runtime.seeding import seeded

C = 7
DEIT = {"mixing": "timm", "mixup": 0.8, "cutmix": 1.0, "mix_prob": 1.0, "switch_prob": 0.5, "smoothing": 0.1}
BIGVISION = {**DEIT, "mixing": "bigvision", "mixup": 0.5, "cutmix": 0.0, "smoothing": 0.0}


def options(base=DEIT, **values):
    return MixOptions(**{**base, **values})


def batch(B=8, H=16, W=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(B, 3, H, W, generator=generator), torch.randint(C, (B,), generator=generator)


def mixed(torch_seed, options, images, labels, seed=0, step=0):
    torch.manual_seed(torch_seed)
    return mix(images, labels, C, options, seed=seed, step=step)


def soft(labels, smoothing):
    """One-hot rows with `smoothing` spread over all classes."""
    return (1 - smoothing) * torch.eye(C)[labels] + smoothing / C


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("values", [{"mixup": 0.0, "cutmix": 0.0}, {"mix_prob": 0.0}])
def test_without_mixing(values, smoothing):
    """Odd batches too."""
    images, labels = batch(5)
    got, targets = mixed(0, options(smoothing=smoothing, **values), images, labels)
    assert torch.equal(got, images)
    torch.testing.assert_close(targets, soft(labels, smoothing))
    assert targets.dtype == torch.float32


def test_mixup_with_the_reversed_batch():
    """x and targets are mixed with one share for the batch, which is distributed as Beta(0.8, 0.8)."""
    images, labels = batch()
    shares = []
    for key in range(300):
        got, targets = mixed(key, options(cutmix=0.0), images, labels)
        other = images.flip(0)
        lam = float(((got - other) / (images - other)).median())
        torch.testing.assert_close(got, lam * images + (1 - lam) * other, atol=1e-5, rtol=1e-5)
        expected = lam * soft(labels, 0.1) + (1 - lam) * soft(labels.flip(0), 0.1)
        torch.testing.assert_close(targets, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(targets.sum(1), torch.ones(8))
        shares.append(lam)
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)
    assert np.var(shares) == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.02)


def test_cutmix_gives_labels_by_area():
    """One box of the reversed batch in every image; a target's share is the area outside it, also where it is cut."""
    images, labels = batch(H=20, W=30)
    areas = []
    for key in range(300):
        got, targets = mixed(key, options(mixup=0.0), images, labels)
        changed = (got != images).any(0).any(0)
        rows, columns = changed.any(1).sum(), changed.any(0).sum()
        assert changed.sum() == rows * columns
        assert torch.equal(got, torch.where(changed, images.flip(0), images))
        area = float(changed.float().mean())
        expected = (1 - area) * soft(labels, 0.1) + area * soft(labels.flip(0), 0.1)
        torch.testing.assert_close(targets, expected, atol=1e-5, rtol=1e-5)
        areas.append(area)
    assert 0.25 < np.mean(areas) < 0.45  # below 1/2: boxes reach over the border
    assert max(areas) > 0.75


def test_equals_timm():
    images, labels = batch()
    mixer = Mixup(0.8, 1.0, prob=0.9, switch_prob=0.5, label_smoothing=0.1, num_classes=C)
    for key in range(20):
        got, targets = mixed(key, options(mix_prob=0.9), images, labels)
        with seeded(key):
            expected = mixer(images.clone(), labels)
        assert torch.equal(got, expected[0])
        assert torch.equal(targets, expected[1])


def test_bigvision_mixes_with_the_image_before():
    """One share at least 1/2 for all; the first image's partner is the last. Odd batches too."""
    images, labels = batch(5)
    for step in range(20):
        a = mixup_share(0.5, 3, step)
        assert 0.5 <= a <= 1
        got, targets = mixed(step, options(BIGVISION), images, labels, seed=3, step=step)
        for i in range(5):
            torch.testing.assert_close(got[i], a * images[i] + (1 - a) * images[i - 1])
            torch.testing.assert_close(targets[i], a * torch.eye(C)[labels[i]] + (1 - a) * torch.eye(C)[labels[i - 1]])


def test_bigvision_follows_seed_and_step_alone():
    """All processes have one share, whatever their torch seed."""
    images, labels = batch()
    one = mixed(0, options(BIGVISION), images, labels, seed=1, step=2)
    other = mixed(9, options(BIGVISION), images, labels, seed=1, step=2)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for seed, step in ((2, 2), (1, 3)):
        assert not torch.equal(mixed(0, options(BIGVISION), images, labels, seed=seed, step=step)[0], one[0])


@pytest.mark.parametrize("base", [DEIT, BIGVISION])
def test_pure(base):
    """Called twice, as by a two-pass optimizer, it gives the same; no generator moves; nothing changes in place."""
    images, labels = batch()
    before = images.clone(), labels.clone()
    torch.manual_seed(11)
    torch.rand(3)  # what was drawn since seeding does not matter
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = mix(images, labels, C, options(base), seed=0, step=0)
    second = mix(images, labels, C, options(base), seed=0, step=0)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], images)
    assert torch.equal(images, before[0])
    assert torch.equal(labels, before[1])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002


@pytest.mark.parametrize(
    ("base", "values", "message"),
    [
        (DEIT, {"mixup": -0.1}, "--mixup -0.1: must be at least 0"),
        (BIGVISION, {"cutmix": 1.0}, "--mixing bigvision: .* `--cutmix 0 --mix-prob 1`"),
    ],
)
def test_options_that_cannot_be(base, values, message):
    with pytest.raises(UsageError, match=message):
        options(base, **values)
