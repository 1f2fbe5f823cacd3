"""Losses of supervised pretraining, what the best constant prediction makes of them, and mixup and cutmix of a batch.

Shapes: B images, H x W pixels, C classes, N tokens. Logits may be of any float type; losses are computed in float32.
"""

import numpy as np
import torch
from timm.data.mixup import Mixup, mixup_target
from torch import Tensor
from torch.nn import functional

from backbones.pretrain.supervised.method import MixOptions
from transfer.core.seeding import key_seed, seeded


def soft_target_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -sum_c t_c log softmax(logits)_c, averaged over all leading dimensions.

    DeiT's loss under mixup (Touvron et al. 2020, arXiv 2012.12877, section 6); with one-hot targets the usual
    cross-entropy.

    Args:
        logits, targets: [..., C], each row of `targets` a distribution. They broadcast against each other.
    """
    return -(targets * functional.log_softmax(logits.float(), dim=-1)).sum(-1).mean()


def sigmoid_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -sum_c [t_c log sigmoid(z_c) + (1 - t_c) log(1 - sigmoid(z_c))] of logits z [B, C], averaged over the
    batch.

    Each class is a question of its own (Beyer et al. 2020, arXiv 2006.07159, section 4; big_vision's `sigmoid_xent`).
    As softplus(z) - t z: torch's own form, (1 - t) z - log sigmoid(z), is a difference of numbers near |z|, of which
    the 4.5e-5 of a class at -10 keeps two digits in float32: 3e-4 of the sum over 21,843 classes.
    """
    z = logits.float()
    return (functional.softplus(z) - targets * z).sum(-1).mean()


def token_label_losses(
    class_logits: Tensor, token_logits: Tensor, box: Tensor, targets: Tensor, token_targets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return token labeling's loss of the class token and the tokens' mean loss (Jiang et al. 2021, arXiv 2104.10858,
    section 3.2).

    Mix-token put a box of tokens of image B - 1 - i into image i, so the class token's target is that of image i and
    of its partner by their shares of tokens. The model has put the tokens' logits back to their own images.

    Args:
        class_logits: [B, C]. token_logits: [B, N, C].
        box: [4], of the tokens that mix-token took from the partner: (top, left, bottom, right).
        targets: [B, C], of the images as they came.
        token_targets: [B, N, C]; None: every token has its image's.
    """
    top, left, bottom, right = box
    share = ((bottom - top) * (right - left)).double() / token_logits.shape[1]
    mixed = (1 - share) * targets + share * targets.flip(0)
    of_tokens = targets[:, None] if token_targets is None else token_targets
    return soft_target_cross_entropy(class_logits, mixed), soft_target_cross_entropy(token_logits, of_tokens)


def constant_loss(prior: Tensor, *, sigmoid: bool) -> float:
    """Return the lowest loss of a prediction that is the same for every image, if the mean target is `prior` [C].

    The cross-entropy's is the entropy of the prior, ln C for equal classes; the sigmoid loss's is the sum of the
    binary entropies.
    """
    prior = prior.double()
    entropy = -torch.xlogy(prior, prior).sum()
    if sigmoid:
        entropy -= torch.xlogy(1 - prior, 1 - prior).sum()
    return float(entropy)


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
        targets = mixup_target(labels, classes, smoothing=options.smoothing)
        before = 1 - mixup_share(options.mixup, seed, step)  # of the image before, and of its target
        return images.lerp(images.roll(1, 0), before), targets.lerp(targets.roll(1, 0), before)
    labelled = {"label_smoothing": options.smoothing, "num_classes": classes}
    mixer = Mixup(options.mixup, options.cutmix, prob=options.mix_prob, switch_prob=options.switch_prob, **labelled)
    with seeded(torch.initial_seed()):
        return mixer(images.clone(), labels)


def mixup_share(alpha: float, seed: int, step: int) -> float:
    """Return big_vision's share of each image in its mixture: max(a, 1 - a) with a ~ Beta(alpha, alpha), from (seed,
    step).
    """
    a = np.random.default_rng(key_seed(seed, step)).beta(alpha, alpha)
    return float(max(a, 1 - a))
