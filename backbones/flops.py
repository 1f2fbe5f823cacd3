"""Floating-point operations of a forward pass, by component. A multiply-add counts as two; nothing else counts.

Counted from the shapes that pass through a model on the meta device, so the same for every kernel and every machine.
Shapes: B images, H x W pixels, N tokens, D channels.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from timm.layers import Attention as TimmAttention
from timm.layers import LayerScale, Mlp, PatchEmbed
from timm.models import volo
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from backbones.attention import Attention
from backbones.ffn import ConvFFN

COMPONENTS = ("stem", "attention", "ffn", "other")
_OWNERS = {"patch_embed": "stem", "attn": "attention", "mlp": "ffn"}


def flops(model: nn.Module, image_size: int | tuple[int, int]) -> dict[str, Any]:
    """Count operations per image of a `Backbone`, of a module that takes maps from its `backbone`, or of any model of
    images.

    Args:
        model: stays as it is. A backbone's classifier does not count.
        image_size: (H, W) in pixels.

    Returns:
        total and one entry per component ("stem", "attention" with its projections, "ffn", "other"), and `method`:
        "analytic" for plain ViTs and VOLOs made of known parts, else "counter" (torch's, over the operations that ran).
        `lengths`: where point-wise attention divides by L^alpha, how many blocks do so by which L.
    """
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    channels = getattr(getattr(model, "spec", None), "in_chans", 3)
    inner = getattr(model, "model", model)
    known = _has_formulas(getattr(getattr(inner, "backbone", None), "model", inner))
    with _record_lengths(model) as lengths:
        counts = (_count_by_formula if known else _count_by_torch)(model, (1, channels, height, width))
    method = "analytic" if known else "counter"
    return {"total": sum(counts.values()), **counts, "method": method, "lengths": dict(lengths)}


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

    parts = [part for part in model.modules() if isinstance(part, Attention) and part.uses_length]
    with ExitStack() as hooks:
        for part in parts:
            hooks.callback(part.register_forward_hook(note, with_kwargs=True).remove)
        yield counts


def _has_formulas(model: nn.Module) -> bool:
    """Return whether every operation that counts belongs to a module with a formula here."""
    if getattr(getattr(model, "patch_embed", None), "user", ""):
        return False
    if isinstance(model, volo.VOLO):
        kinds: Any = volo.Outlooker | volo.Transformer
        blocks: list[Any] = [part for part in model.modules() if isinstance(part, kinds)]
        return all(isinstance(block.mlp, Mlp | ConvFFN) for block in blocks)
    if not isinstance(model, VisionTransformer):
        return False
    blocks = list(model.blocks)
    return (
        isinstance(model.patch_embed, PatchEmbed)
        and model.attn_pool is None
        and all(type(block) is Block and isinstance(block.attn, TimmAttention) for block in blocks)
        and all(not isinstance(block.attn, Attention) or block.attn.operations(1, 1) is not None for block in blocks)
        and all(
            isinstance(block.mlp, Mlp | ConvFFN) and isinstance(block.ls1, nn.Identity | LayerScale) for block in blocks
        )
    )


def _component(name: str) -> str:
    return next((_OWNERS[piece] for piece in name.split(".") if piece in _OWNERS), "other")


def _count_by_formula(model: nn.Module, shape: tuple[int, ...]) -> dict[str, float]:
    counts = dict.fromkeys(COMPONENTS, 0.0)

    def hook(component: str) -> Callable[..., None]:
        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            counts[component] += _operations(module, inputs[0], output)

        return add

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_hook(hook(_component(name))).remove)
        _forward(model, shape)
    return counts


def _operations(module: nn.Module, x: Tensor, output: Tensor) -> float:
    """Return the operations of a module itself, without those within; for attention its two products, B N N D each."""
    if isinstance(module, nn.Linear):
        return 2.0 * output.numel() * module.in_features
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return 2.0 * output.numel() * module.weight[0].numel()
    if isinstance(module, Attention):
        return float(module.operations(x.shape[0], x.shape[1]) or 0)
    if isinstance(module, TimmAttention):
        return 4.0 * x.shape[0] * x.shape[1] ** 2 * module.attn_dim
    if isinstance(module, volo.Attention):  # on [B, h, w, D]
        return 4.0 * x.shape[0] * (x.shape[1] * x.shape[2]) ** 2 * x.shape[3]
    if isinstance(module, volo.ClassAttention):  # one query, that of the class token
        return 4.0 * x.shape[0] * x.shape[1] * module.head_dim * module.num_heads
    if isinstance(module, volo.OutlookAttention):  # weights k^2 x k^2 at every place, on [B, h, w, D]
        places = -(-x.shape[1] // module.stride) * -(-x.shape[2] // module.stride)
        return 2.0 * x.shape[0] * places * module.kernel_size**4 * x.shape[3]
    return 0.0


def _count_by_torch(model: nn.Module, shape: tuple[int, ...]) -> dict[str, float]:
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
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # some versions miss fused attention
        _forward(model, shape, on_meta=on_meta)
    return counter


def _forward(model: nn.Module, shape: tuple[int, ...], *, on_meta: bool = True) -> None:
    """Run one forward pass in evaluation mode; on the meta device nothing is computed."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    device = torch.device("meta") if on_meta else next(iter(tensors.values())).device
    used = {name: torch.empty_like(tensor, device=device) if on_meta else tensor for name, tensor in tensors.items()}
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            torch.func.functional_call(model, used, (torch.zeros(shape, device=device),))
    finally:
        for module in training:
            module.training = True
