"""The focal losses of `mmcv._ext`, of M anchors over C classes. Logarithms of sigmoids do not saturate here."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.detection.operator_dtype import operator_dtype


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss (arXiv 1708.02002, section 3.2) of logits [M, C] into `output` [M, C].

    Args:
        target: [M] the class of each anchor; C, or a negative number, is background.
        weight: [C] of the classes, for the rows of anchors of that class, those of background weighing 1; or empty.

    Raises:
        ValueError: if a target exceeds C.
    """
    z, _, share = _signed(input, target, weight, alpha)
    output.copy_(-share * torch.sigmoid(-z) ** gamma * F.logsigmoid(z))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """The derivative of each loss [M, C] by its logit, into `grad_input` [M, C]."""
    z, sign, share = _signed(input, target, weight, alpha)
    slope = gamma * torch.sigmoid(z) * F.logsigmoid(z) - torch.sigmoid(-z)
    grad_input.copy_(sign * share * torch.sigmoid(-z) ** gamma * slope)


def _signed(input: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the truth [M, C], their signs relative to `input`, and the factors alpha_t, weighted."""
    classes = input.shape[1]
    if len(target) and int(target.max()) > classes:
        raise ValueError(f"focal loss: a target is {int(target.max())}, with {classes} classes")
    logits = input.to(operator_dtype(input))
    hit = target[:, None] == torch.arange(classes, device=target.device)
    share = torch.where(hit, alpha, 1 - alpha).to(logits)
    if weight.numel():
        share = share * torch.where(hit.any(1), weight.to(logits)[target.clamp(0, classes - 1)], 1)[:, None]
    return torch.where(hit, logits, -logits), torch.where(hit, 1, -1), share


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss of probabilities [M, C] into `output` [M]; a negative target [M] gives 0. `weight`: [C] or empty."""
    probability, factor = _of_target(input, target, weight, alpha)
    output.copy_(-factor * (1 - probability) ** gamma * _log(probability))


def softmax_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, buff: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """The derivative by the logits [M, C] into `grad_input`; `buff` [M] gets that by the log-probability."""
    probability, factor = _of_target(input, target, weight, alpha)
    rest = 1 - probability
    # the clamp keeps 0 * inf out of a certain prediction
    steep = gamma * rest.clamp(min=torch.finfo(rest.dtype).tiny) ** (gamma - 1) * probability * _log(probability)
    by_log = factor * (steep - rest**gamma)
    buff.copy_(by_log)
    hit = target[:, None] == torch.arange(input.shape[1], device=target.device)
    grad_input.copy_(by_log[:, None] * (hit.to(by_log) - input))


def _of_target(input: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """[M] the probability of the target, and its factor alpha, weighted; the factor of a negative target is 0."""
    probabilities, known = input.to(operator_dtype(input)), target.clamp(min=0)
    factor = alpha * (target >= 0).to(probabilities)
    if weight.numel():
        factor = factor * weight.to(probabilities)[known]
    return probabilities.gather(1, known[:, None])[:, 0], factor


def _log(probability: Tensor) -> Tensor:
    return probability.clamp(min=torch.finfo(torch.float32).tiny).log()
