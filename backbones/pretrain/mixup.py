"""Mixing the images of a batch: mixup (arXiv 1710.09412) and cutmix (arXiv 1905.04899), and the soft targets.

Shapes: B images, H x W pixels, C classes.
"""

import numpy as np
import torch
from timm.data.mixup import Mixup, mixup_target
from torch import Tensor

from backbones.pretrain.options import MixOptions
from backbones.runtime.seeding import key_seed, seeded


def mix(
    images: Tensor, labels: Tensor, classes: int, options: MixOptions, *, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """Return mixed images [B, 3, H, W] and their targets [B, C] float32, rows of which sum to 1.

    A pure function of its arguments and of torch's seed: timm's draws follow `torch.initial_seed()`, so they differ
    between processes seeded differently; big_vision's share follows (seed, step) alone. No generator moves, and what is
    given stays as it is.

    Args:
        images: [B, 3, H, W].
        labels: [B] int64.
        classes: C.
        options: what is mixed.
        seed: the seed of the run; the same in every process.
        step: the step of the run; the same in every process.
    """
    if not options.mixes:
        return images, mixup_target(labels, classes, smoothing=options.smoothing)
    if options.mixing == "bigvision":
        return _mix_with_next(images, labels, classes, options, mixup_share(options.mixup, seed, step))
    mixer = Mixup(
        options.mixup,
        options.cutmix,
        prob=options.mix_prob,
        switch_prob=options.switch_prob,
        label_smoothing=options.smoothing,
        num_classes=classes,
    )
    with seeded(torch.initial_seed()):
        mixed: tuple[Tensor, Tensor] = mixer(images.clone(), labels)
        return mixed


def mixup_share(alpha: float, seed: int, step: int) -> float:
    """Return big_vision's share of each image in its mixture: max(a, 1 - a) with a ~ Beta(alpha, alpha), from (seed,
    step).
    """
    a = np.random.default_rng(key_seed(seed, step)).beta(alpha, alpha)
    return float(max(a, 1 - a))


def _mix_with_next(
    images: Tensor, labels: Tensor, classes: int, options: MixOptions, share: float
) -> tuple[Tensor, Tensor]:
    """Return share * x[i] + (1 - share) * x[i - 1], for images and targets."""
    targets = mixup_target(labels, classes, smoothing=options.smoothing)
    images, targets = (x.lerp(x.roll(1, 0), 1 - share) for x in (images, targets))
    return images, targets
