"""Attentions by name: softmax, and the point-wise family of "Replacing softmax with ReLU in ViTs" (arXiv 2309.08586).

Shapes: B images, N tokens, D channels, d = head_dim; q, k, v are [B, heads, N, d].
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention as TimmAttention
from timm.layers import register_notrace_module
from torch import Tensor, nn

from backbones.initialisation import attention_kind, contract, forward_of, make_users, shape_or_type
from backbones.kernels.functions import SCORE_FUNCTIONS, normalised_pointwise, pointwise, softmax, without_autocast
from backbones.token_shards import Shards
from transfer.core import user_code
from transfer.core.errors import UsageError, UserError

__all__ = ["normalised_pointwise", "pointwise", "softmax"]  # besides what is defined here

ATTENTIONS: dict[str, Callable[..., Tensor]] = {
    "softmax": softmax,
    **{h: partial(pointwise, h=h) for h in SCORE_FUNCTIONS},
    **{f"{h}_sum": partial(normalised_pointwise, h=h) for h in SCORE_FUNCTIONS},
}


class HeadNorm(nn.Module):
    """LayerNorm over head_dim with a scale and no bias, in the precision of its input (ViT-22B, arXiv 2302.05442).

    Flax's epsilon, 1e-6; one scale for all heads.
    """

    def __init__(self, head_dim: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(head_dim, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        # a CPU takes a float32 scale beside 16 bits, and is a quarter faster so
        mixed = x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)
        with without_autocast(x):
            return F.layer_norm(x, self.weight.shape, self.weight if mixed else self.weight.to(x.dtype), None, 1e-6)


GATES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "silu": F.silu, "linear": nn.Identity()}
"""sigmoid is timm's (`Attention(gated=True)`); silu that of gated attention units (Hua et al. 2022, arXiv 2202.10447);
linear has no activation, the product of two projections."""


@register_notrace_module  # how it is computed depends on sizes, so that a traced graph calls it as a whole
class Attention(TimmAttention):
    """Multi-head self-attention [B, N, D] -> [B, N, D] around any function of (q, k, v).

    Args:
        core: an entry of `ATTENTIONS`, or a `CustomCore`.
        alpha: exponent of the length, or "learned": one scalar per block, 1 at first.
        length: L of the factor L^-alpha. "tokens": the keys given, so those of the window in a windowed block;
            "image": the tokens of the whole image, which a caller that cuts windows gives to `forward`; "train":
            `train_tokens`.
        gate: the activation g of a gate, see `GATES`: the heads' outputs are multiplied by g(a projection of the
            input). "off": there is none. The paper (section 4) does not name g.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        core: Callable[..., Tensor],
        *,
        qk_norm: bool = False,
        gate: str = "off",
        alpha: float | str = 1.0,
        length: str = "tokens",
        train_tokens: int | None = None,
    ) -> None:
        super().__init__(dim, heads, qkv_bias=True, qk_norm=qk_norm, gated=gate != "off", norm_layer=HeadNorm)
        if gate != "off":
            self.gating = GATES[gate]
        self.core = core
        # not where the weights are divided by their sum, nor to a user's that does not take it
        self.takes_length = getattr(core, "func", None) is pointwise or "length" in getattr(core, "takes", ())
        self.shards: Shards | None = None
        self.length = length
        self.train_tokens = train_tokens
        self.alpha: float | nn.Parameter = nn.Parameter(torch.tensor(1.0)) if isinstance(alpha, str) else alpha

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, image_tokens: int | None = None
    ) -> Tensor:
        """Attend within x [B, N, D]; `image_tokens` is the number of tokens of the whole image where x holds only a
        window.
        """
        if attn_mask is not None or is_causal:
            raise ValueError("attention masks are not supported")
        B, N, _ = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        core, tokens = self.core, N
        if self.training and self.shards is not None and self.shards.tokens is not None:  # x is this rank's share
            core, tokens = self.shards.distribute(core), self.shards.tokens
        out = core(self.q_norm(q), self.k_norm(k), v, **self.core_options(tokens, image_tokens))
        out = out.transpose(1, 2).reshape(B, N, self.attn_dim)
        if self.gate is not None:
            out = out * self.gating(self.gate(x))
        return self.proj(out)

    def effective_length(self, tokens: int, image_tokens: int | None = None) -> int | None:
        """Return L of the factor L^-alpha for this number of keys; see `forward` for `image_tokens`."""
        return {"tokens": tokens, "image": image_tokens or tokens, "train": self.train_tokens}[self.length]

    def core_options(self, tokens: int, image_tokens: int | None = None) -> dict[str, Any]:
        """Return what the core takes besides q, k and v, likewise."""
        return {"alpha": self.alpha, "length": self.effective_length(tokens, image_tokens)} if self.takes_length else {}

    def random_inputs(self, tokens: int) -> Tensor:
        """Return q, k and v of one image, [3, 1, heads, N, d], always the same, in type and place of the weights."""
        shape = (3, 1, self.num_heads, tokens, self.head_dim)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.qkv.weight)

    @torch.no_grad()
    def attends_by_query(self) -> bool:
        """Return whether a query's result depends on no other query, so that ranks can have some of them each."""
        q, k, v = self.random_inputs(7)
        core = partial(self.core, **self.core_options(7))
        try:
            return torch.allclose(core(q[:, :, :3], k, v), core(q, k, v)[:, :, :3], rtol=1e-3, atol=1e-4)
        except (RuntimeError, UserError):  # a user's, which takes no other number of queries than of keys
            return False


class CustomCore(nn.Module):
    """A user's attention of (q, k, v): a function, or a module with parameters of its own.

    It may take two more by name: `scale`, that of the scores in place of 1 / sqrt(d), and `length`, L as `Attention`
    counts it.
    """

    def __init__(self, kind: str, text: str, body: Callable[..., Tensor]) -> None:
        super().__init__()
        self.kind, self.text, self.body = kind, text, body
        self.takes = {"scale", "length"}.intersection(inspect.signature(forward_of(body)).parameters)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        taken = {name: options[name] for name in self.takes if options.get(name) is not None}
        output = self.body(q, k, v, **taken)
        if getattr(output, "shape", None) != (*q.shape[:3], v.shape[3]):
            raise UserError(f"{contract(self.kind, self.text)}; got {shape_or_type(output)} for {shape_or_type(q)}")
        return output


def takes_scale(core: Callable[..., Tensor]) -> bool:
    """Return whether an attention function takes the scale of the scores, so that queries and keys may be wider than
    values.
    """
    return core in ATTENTIONS.values() or "scale" in getattr(core, "takes", ())


@register_notrace_module
class UserAttention(nn.Module):
    """A user's `Name(dim, heads)`, called the way timm's block calls an attention."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, image_tokens: int | None = None
    ) -> Tensor:
        return self.body(x)


def make_attention(
    name: str, dim: int, heads: int, *, alpha: float | str = 1.0, length: str = "tokens", **options: Any
) -> nn.Module:
    """Return the attention of one block: an entry of `ATTENTIONS`, or a user's `file.py:Name`.

    The user's is a function (q, k, v) -> [B, heads, N, d], a class `Name(heads, head_dim)` whose `forward` is such a
    function, or a class `Name(dim, heads)` mapping [B, N, D] -> [B, N, D]; see `attention_kind`.

    Raises:
        UsageError: an unknown name, or an option that this attention does not take.
    """
    user_code.check_name("attention", name)
    if alpha != 1 and (name == "softmax" or name.endswith("_sum") or user_code.is_user_part(name)):
        raise UsageError(f"`alpha: {alpha}` has no effect on the attention '{name}': it does not divide by the length")
    if not user_code.is_user_part(name):
        return Attention(dim, heads, ATTENTIONS[name], alpha=alpha, length=length, **options)
    kind, part = attention_kind(name)
    if kind == "attention":
        if options.get("gate", "off") != "off" or options.get("qk_norm") or length != "tokens":
            raise UsageError(f"{name} is a module of its own: `gate`, `qk_norm` and `length` do not reach into it")
        return UserAttention(make_users("attention", name, dim, heads))
    core = CustomCore(kind, name, make_users(kind, name, heads, dim // heads) if kind == "attention core" else part)
    if length != "tokens" and "length" not in core.takes:
        raise UsageError(f"`length: {length}` has no effect on {name}, which takes no argument `length`")
    return Attention(dim, heads, core, length=length, **options)
