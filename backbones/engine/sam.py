"""Sharpness-aware minimisation: the gradient is taken where the loss is highest near the weights.

SAM (Foret et al. 2021, arXiv 2010.01412, equation 2) climbs by rho g / ||g||; adaptive SAM (Kwon et al. 2021, arXiv
2102.11600, algorithm 1) by rho |w|^2 g / || |w| g ||, products by element. Norms are over all parameters at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

TINY = 1e-12  # added to the norm


@contextmanager
def perturbed(parameters: Sequence[nn.Parameter], rho: float, *, adaptive: bool) -> Iterator[Tensor]:
    """Move parameters by `rho` along their gradients, which are used up; restore them to the bit on exit.

    Parameters without gradient stay where they are.

    Yields:
        The norm of the gradient ([]; scaled by the weights if `adaptive`). When it is not finite, neither are the
        moved parameters.
    """
    moved: list[Tensor] = [parameter for parameter in parameters if parameter.grad is not None]
    kept = [weight.detach().clone() for weight in moved]
    norm = _ascend(moved, rho, adaptive)
    for weight in moved:
        weight.grad = None
    try:
        yield norm
    finally:
        restore_tensors(moved, kept)


@torch.no_grad()
def _ascend(weights: list[Tensor], rho: float, adaptive: bool) -> Tensor:
    steps = [weight.grad for weight in weights if weight.grad is not None]
    sizes = tuple(torch._foreach_abs(weights)) if adaptive else ()
    if adaptive:
        torch._foreach_mul_(steps, sizes)
    norm = nn.utils.get_total_norm(steps, foreach=True)
    if adaptive:
        torch._foreach_mul_(steps, sizes)
    torch._foreach_mul_(steps, rho / (norm + TINY))
    torch._foreach_add_(weights, tuple(steps))
    return norm


@contextmanager
def preserve_buffers(module: nn.Module) -> Iterator[None]:
    """Restore buffers (batch-norm statistics, running centers) on exit to what they were on entry."""
    kept = [buffer.clone() for buffer in module.buffers()]
    try:
        yield
    finally:
        restore_tensors(list(module.buffers()), kept)


@torch.no_grad()
def restore_tensors(tensors: list[Tensor], values: list[Tensor]) -> None:
    """Copy values into tensors."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
