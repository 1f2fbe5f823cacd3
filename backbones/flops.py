"""Floating-point operations of a forward pass, by component. A multiply-add counts as two; nothing else counts.

torch's counter counts the products that run on the meta device, so the same for every kernel and every machine.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from backbones.attention import Attention
from backbones.spec import sides

COMPONENTS = ("stem", "attention", "ffn", "other")
_OWNERS = {"patch_embed": "stem", "attn": "attention", "mlp": "ffn"}


def flops(model: nn.Module, image_size: int | tuple[int, int]) -> dict[str, Any]:
    """Count operations per image of a `Backbone`, of a module that takes maps from its `backbone`, or of any model of
    images.

    Args:
        model: stays as it is. A backbone's classifier does not count.
        image_size: (H, W) in pixels.

    Returns:
        total and one entry per component ("stem", "attention" with its projections, "ffn", "other").
        `lengths`: where point-wise attention divides by L^alpha, how many blocks do so by which L.
    """
    channels = getattr(getattr(model, "spec", None), "in_chans", 3)
    with _record_lengths(model) as lengths:
        counts = _count(model, (1, channels, *sides(image_size)))
    return {"total": sum(counts.values()), **counts, "lengths": dict(lengths)}


@contextmanager
def _record_lengths(model: nn.Module) -> Iterator[Counter[int]]:
    """Yield a counter of the L of every point-wise attention that runs within; windows at the border of an image have
    an L of their own.
    """
    counts: Counter[int] = Counter()
    seen: set[tuple[Attention, int]] = set()

    def note(module: Attention, inputs: tuple[Tensor, ...], options: dict[str, Any], output: Tensor) -> None:
        length = module.effective_length(inputs[0].shape[1], options.get("image_tokens")) or 0
        counts[length] += (module, length) not in seen
        seen.add((module, length))

    with ExitStack() as hooks:
        for part in model.modules():
            if isinstance(part, Attention) and part.takes_length:
                hooks.enter_context(part.register_forward_hook(note, with_kwargs=True))
        yield counts


def _count(model: nn.Module, shape: tuple[int, ...]) -> dict[str, float]:
    try:
        counter = _run_counter(model, shape, on_meta=True)
    except (RuntimeError, NotImplementedError):  # a user's part may make tensors of its own on the CPU
        counter = _run_counter(model, shape, on_meta=False)
    counts = dict.fromkeys(COMPONENTS, 0.0)
    counts["other"] = float(counter.get_total_flops())
    for path, operations in counter.get_flop_counts().items():
        *above, last = path.split(".")
        component = _OWNERS.get(last)
        if component is not None and not _OWNERS.keys() & {*above}:  # what stands within another is counted there
            counts[component] += sum(operations.values())
            counts["other"] -= sum(operations.values())
    return counts


def _run_counter(model: nn.Module, shape: tuple[int, ...], *, on_meta: bool) -> FlopCounterMode:
    """Count one forward pass in evaluation mode; on the meta device nothing is computed."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    device = torch.device("meta") if on_meta else next(iter(tensors.values())).device
    used = {name: torch.empty_like(tensor, device=device) if on_meta else tensor for name, tensor in tensors.items()}
    training = [module for module in model.modules() if module.training]
    counter = FlopCounterMode(display=False)
    model.eval()
    try:
        with torch.no_grad(), counter, sdpa_kernel(SDPBackend.MATH):  # some versions miss fused attention
            torch.func.functional_call(model, used, (torch.zeros(shape, device=device),))
    finally:
        for module in training:
            module.training = True
    return counter
