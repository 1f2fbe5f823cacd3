"""The sigmoid focal loss of `mmcv._ext`, of M anchors over C classes. Logarithms of sigmoids do not saturate here."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.detection.operator_dtype import operator_dtype


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss (arXiv 1708.02002, section 3.2) of logits [M, C] into `output` [M, C].

    Args:
        target: [M] the class of each anchor; C, or a negative number, is background.
        weight: [C], factor of the anchors of each class, 1 for background; or empty.

    Raises:
        ValueError: a target exceeds C.
    """
    z, _, share = _signed(input, target, weight, alpha)
    output.copy_(-share * torch.sigmoid(-z) ** gamma * F.logsigmoid(z))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of each loss [M, C] by its logit into `grad_input` [M, C]."""
    z, sign, share = _signed(input, target, weight, alpha)
    slope = gamma * torch.sigmoid(z) * F.logsigmoid(z) - torch.sigmoid(-z)
    grad_input.copy_(sign * share * torch.sigmoid(-z) ** gamma * slope)


def _signed(input: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits of the truth [M, C], their signs relative to `input`, and the weighted factors alpha_t."""
    classes = input.shape[1]
    if len(target) and int(target.max()) > classes:
        raise ValueError(f"focal loss: a target is {int(target.max())}, with {classes} classes")
    logits = input.to(operator_dtype(input))
    hit = target[:, None] == torch.arange(classes, device=target.device)
    share = torch.where(hit, alpha, 1 - alpha).to(logits)
    if weight.numel():
        share = share * torch.where(hit.any(1), weight.to(logits)[target.clamp(0, classes - 1)], 1)[:, None]
    return torch.where(hit, logits, -logits), torch.where(hit, 1, -1), share
