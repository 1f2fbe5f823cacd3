"""DINO's objective: the student predicts the teacher's centred, sharpened softmax across crops of an image.

Caron et al. 2021, arXiv 2104.14294, section 3.1, equations 1-4 and algorithm 1. Shapes: V crops (the first 2 are the
global ones), B images, K prototypes.
"""

from torch import Tensor
from torch.nn import functional


def teacher_log_probabilities(outputs: Tensor, center: Tensor, temperature: Tensor | float) -> Tensor:
    """Return log softmax((outputs - center) / temperature) in float32.

    Args:
        outputs: [2, B, K] of the teacher, for the global crops.
        center: [K].
        temperature: the temperature of the teacher.
    """
    return functional.log_softmax((outputs.float() - center) / temperature, dim=-1)


def cross_view_loss(outputs: Tensor, probabilities: Tensor, temperature: float) -> Tensor:
    """Return the mean cross-entropy between the teacher's view of a global crop and the student's of every other crop.

    -1 / (2 V - 2) sum over i = 1, 2, j = 1..V, j != i of mean_B sum_K p_i log softmax(s_j / temperature); each crop's
    log-sum-exp less its product with the probabilities it is compared with, so that no [V, B, K] softmax is formed.

    Args:
        outputs: [V, B, K] of the student, V at least 2, crops in the teacher's order.
        probabilities: [2, B, K] of the teacher, without gradient.
        temperature: the temperature of the student.

    Returns:
        The loss, a float32 scalar.
    """
    crops, batch, _ = outputs.shape
    logits = outputs.float() / temperature
    totals = logits.logsumexp(-1)  # [V, B]
    loss = (totals[:2] - (logits[:2] * probabilities.flip(0)).sum(-1)).sum()
    if crops > 2:
        # both of the teacher's views at once: [B, K] against [V - 2, B, K]
        loss = loss + (2 * totals[2:] - (logits[2:] * probabilities.sum(0)).sum(-1)).sum()
    return loss / (batch * (2 * crops - 2))


def entropy(log_probabilities: Tensor) -> Tensor:
    """Return the mean entropy, in nats, of distributions [..., K] given by their logarithms."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1).mean()


def teacher_temperature(epoch: int, *, start: float, end: float, warmup_epochs: int) -> float:
    """Return an epoch's temperature (epochs from 0), linear from `start` in the first warm-up epoch to `end` in the
    last.
    """
    if epoch >= warmup_epochs:
        return end
    return start + (end - start) * epoch / max(warmup_epochs - 1, 1)
