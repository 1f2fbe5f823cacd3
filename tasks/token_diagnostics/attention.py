"""The attention weights of a block, as computed in its forward pass.

Shapes: B images, N queries, L keys, d = head_dim; q, k, v are [B, heads, N or L, d], weights [B, heads, N, L].
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from timm.layers import Attention as TimmAttention
from timm.models.volo import Attention as VoloAttention
from torch import Tensor, nn

from backbones.attention import ATTENTIONS, Attention
from backbones.attention_functions import without_autocast

Core = Callable[..., Tensor]
Receive = Callable[[Tensor], None]


def has_weights(attention: Any) -> bool:
    """Return whether an attention's weights can be computed: this suite's, timm's plain one's, VOLO's."""
    return isinstance(attention, Attention) or type(attention) in (TimmAttention, VoloAttention)


@contextmanager
def weights_shown(attention: Any, receive: Receive) -> Iterator[None]:
    """Call `receive` with the attention's weights in every forward pass within the block."""
    if not isinstance(attention, Attention):
        hook = attention.register_forward_pre_hook(lambda module, inputs: receive(softmax_weights(module, inputs[0])))
        try:
            yield
        finally:
            hook.remove()
        return
    core = attention.core

    def shown(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        receive(weights_of(partial(core, **options), q, k))
        return core(q, k, v, **options)

    attention.core = shown
    try:
        yield
    finally:
        attention.core = core


def weights_of(core: Core, q: Tensor, k: Tensor) -> Tensor:
    """Return the weights of a function of (q, k, v) that sums values with weights: its results for unit vectors as v.

    They are computed in float32 at least, so that half-precision queries and keys are not rounded again.
    """
    keys, d = k.shape[-2:]
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(wide), k.to(wide)
    base = torch.eye(keys, dtype=wide, device=q.device)
    base = nn.functional.pad(base, (0, -keys % d))
    with without_autocast(q):
        columns = [core(q, k, unit.expand_as(k).contiguous()) for unit in base.split(d, dim=1)]
    return torch.cat(columns, dim=-1)[..., :keys]


def sums_values(core: Core, attention: Attention) -> bool:
    """Return whether a function of (q, k, v) sums values with weights independent of them; the shipped ones do."""
    if core in ATTENTIONS.values():
        return True
    generator = torch.Generator().manual_seed(0)
    weight = attention.qkv.weight
    shape = (3, 1, attention.num_heads, 7, attention.head_dim)
    q, k, v = torch.randn(shape, generator=generator).to(weight.device, weight.dtype)
    with without_autocast(q):  # independent of the run's precision
        return bool(torch.allclose(weights_of(core, q, k) @ v, core(q, k, v), rtol=1e-3, atol=1e-4))


def softmax_weights(attention: nn.Module, x: Tensor) -> Tensor:
    """Return a timm attention's weights for tokens [B, N, D] or a map [B, h, w, D], by its projection of q and k."""
    module: Any = attention
    x = x.flatten(1, -2)
    q, k, _ = module.qkv(x).unflatten(2, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    if hasattr(module, "q_norm"):
        q, k = module.q_norm(q), module.k_norm(k)
    with without_autocast(q):
        weights: Tensor = (q.float() * module.scale @ k.float().mT).softmax(-1)
        return weights
