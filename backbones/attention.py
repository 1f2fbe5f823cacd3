"""Attentions: softmax, and the point-wise family of "Replacing softmax with ReLU in ViTs" (arXiv 2309.08586).

Shapes: B images, N query tokens, L key tokens, D channels, d = head_dim; q, k, v are [B, heads, N or L, d]. Everywhere
`key_mask` [B, L] is True for the keys that count: padding is no token, and changes nothing.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from timm.layers import Attention as TimmAttention
from torch import Tensor, nn

from backbones import parts
from backbones.errors import UserError, WrongWords, nearest
from backbones.kernels.operator import attend

if TYPE_CHECKING:
    from backbones.sequence_parallel import Shards

# In place where the gradient needs the output alone: nothing else holds the L x L scores.
H: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu_,
    "relu2": lambda scores: F.relu_(scores).square(),
    "gelu": F.gelu,
    "softplus": F.softplus,
    "identity": lambda scores: scores,
    "relu6": lambda scores: F.relu6(scores, inplace=True),
    "sigmoid": torch.sigmoid_,
}
_SIGNED = ("gelu", "identity")
# Bytes of scores up to which a CPU is faster with torch's own operations, which keep them for the backward pass.
_FEW = 900_000


def pointwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    h: str = "relu",
    alpha: float | Tensor = 1.0,
    length: int | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Point-wise attention L^-alpha h(q k^T / sqrt(d)) v (arXiv 2309.08586, section 3), in memory linear in N and L.

    Args:
        q, k, v: [B, heads, N, d], [B, heads, L, d], [B, heads, L, d].
        h: relu, relu2, gelu, softplus, identity, relu6 or sigmoid.
        alpha: exponent of the length; a scalar tensor may require gradients.
        length: L of the factor L^-alpha; None: the number of keys, of each image those that count.
        key_mask: [B, L], or None.

    Returns:
        [B, heads, N, d], under autocast in its precision. Zeros where there are no keys.

    Raises:
        ValueError: an h that there is not, an alpha that is not finite, or tensors that do not fit each other.
    """
    q, k, v = fitting(q, k, v)
    if h not in H:
        raise ValueError(f"h = '{h}'{nearest(h, list(H))} is none of {', '.join(H)}")
    if not isinstance(alpha, Tensor) and not math.isfinite(alpha):
        raise ValueError(f"alpha = {alpha} is not finite")
    keys = max(k.shape[-2], 1)
    exponent = 1.0 if isinstance(alpha, Tensor) else alpha
    factor = float(length or keys) ** -exponent
    rest = float(length or keys) ** (1.0 - alpha) if isinstance(alpha, Tensor) else None
    with own_precision(q):
        k, v = _without_padding(k, v, key_mask)
        out = _weighted_sums(q, k, v, h, factor)
        if rest is not None:
            out = out * rest
        if key_mask is not None and length is None:
            share = key_mask.sum(-1).clamp_min(1).to(torch.promote_types(out.dtype, torch.float32)) / keys
            out = out * share.pow(-alpha).to(out.dtype).view(-1, 1, 1, 1)
        return out


def _weighted_sums(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float) -> Tensor:
    """factor * h(q k^T / sqrt(d)) v, whichever way is the fastest."""
    queries, keys, d = q.shape[-2], k.shape[-2], q.shape[-1]
    if h == "identity" and linear_is_cheaper(queries, keys, d):
        unused = q.new_empty(1, 1, 1)
        summary = torch.baddbmm(unused, k.flatten(0, 1).mT, v.flatten(0, 1), beta=0, alpha=factor)
        return torch.baddbmm(unused, q.flatten(0, 1), summary, beta=0, alpha=d**-0.5).unflatten(0, q.shape[:2])
    if q.device.type == "cpu":
        if q.shape[0] * q.shape[1] * queries * keys * q.element_size() <= _FEW:
            # the factor is applied to the N x d outputs, forward and backward, never to the N x L weights
            return _weighted(H[h](_scores(q, k)), v) * factor
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # here, so that the backward pass has them so too
    return attend(q, k, v, h, factor)


def linear_is_cheaper(queries: int, keys: int, head_dim: int) -> bool:
    """Whether q (k^T v) takes fewer operations than (q k^T) v, which it equals for h = identity."""
    return (queries + keys) * head_dim < 2 * queries * keys


def normalised(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    h: str = "relu",
    alpha: float | Tensor = 1.0,
    length: int | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Point-wise attention whose weights are divided by the sum of their absolute values over the keys.

    For the h that are never negative the weights so sum to 1. A row without any weight gives 0. L^-alpha would cancel,
    so that `alpha` and `length` do not matter here. The N x L weights are kept for the backward pass.
    """
    q, k, v = fitting(q, k, v)
    with own_precision(q):
        weighted, total = weighted_and_total(q, *_without_padding(k, v, key_mask), h, key_mask)
        return weighted / total.clamp_min(torch.finfo(total.dtype).tiny)


def weighted_and_total(
    q: Tensor, k: Tensor, v: Tensor, h: str, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h(S) v [B, heads, N, d] and the sums of |h(S)| over the keys [B, heads, N, 1], for S = q k^T / sqrt(d)."""
    weights = H[h](_scores(q, k))
    if key_mask is not None:
        weights = weights.masked_fill(_per_head(~key_mask, q), 0)
    total = (weights.abs() if h in _SIGNED else weights).sum(-1)
    return _weighted(weights, v), total.view(*q.shape[:-1], 1)


def softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor = 1.0,
    length: int | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v; fused, unless that is slower. `alpha` and `length` do not matter here."""
    q, k, v = fitting(q, k, v)
    k, v = _without_padding(k, v, key_mask)
    trains = not torch.is_inference_mode_enabled()
    if trains and q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] <= 1024:
        # the fused kernel's backward is slow there: 54 ms a block against 19 at 129 tokens (ViT-S, 16 images, a core);
        # its forward alone is not: 3.9 ms against 7.8 at 197 tokens (two cores)
        with own_precision(q):
            scores = _scores(q, k)
            if key_mask is not None:
                scores = scores.masked_fill(_per_head(~key_mask, q), -math.inf)
            return _weighted(scores.softmax(-1), v)
    mask = None if key_mask is None else key_mask[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


ATTENTIONS: dict[str, Callable[..., Tensor]] = {
    "softmax": softmax,
    "relu": partial(pointwise, h="relu"),
    "relu2": partial(pointwise, h="relu2"),
    "gelu": partial(pointwise, h="gelu"),
    "softplus": partial(pointwise, h="softplus"),
    "identity": partial(pointwise, h="identity"),
    "relu6": partial(pointwise, h="relu6"),
    "sigmoid": partial(pointwise, h="sigmoid"),
    "relu_sum": partial(normalised, h="relu"),
    "relu2_sum": partial(normalised, h="relu2"),
    "gelu_sum": partial(normalised, h="gelu"),
    "softplus_sum": partial(normalised, h="softplus"),
    "identity_sum": partial(normalised, h="identity"),
    "relu6_sum": partial(normalised, h="relu6"),
    "sigmoid_sum": partial(normalised, h="sigmoid"),
}


def fitting(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three under autocast's precision where it is on. Raises ValueError if they do not fit each other."""
    if q.ndim != 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3:] != k.shape[3:]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"q, k, v are [B, heads, N, d], [B, heads, L, d], [B, heads, L, d], not {shapes}")
    device = q.device.type
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k, v are on different devices: {q.device}, {k.device}, {v.device}")
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        return q.to(dtype), k.to(dtype), v.to(dtype)
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v are of different types, without autocast: {q.dtype}, {k.dtype}, {v.dtype}")
    return q, k, v


def _without_padding(k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Zeros in the place of padding: a weight of zero would not keep a NaN out."""
    if key_mask is None:
        return k, v
    padding = ~key_mask[:, None, :, None]
    return k.masked_fill(padding, 0), v.masked_fill(padding, 0)


def _per_head(mask: Tensor, q: Tensor) -> Tensor:
    """[B, L] -> [B * heads, 1, L]."""
    return mask.repeat_interleave(q.shape[1], 0)[:, None]


def own_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast off, which would compute norms, and softplus on N x L scores, in fp32."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """q k^T / sqrt(d), [B * heads, N, L]; the scale within the product costs no pass of its own."""
    flat = q.new_empty(1, 1, 1), q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)
    return torch.baddbmm(*flat, beta=0, alpha=q.shape[-1] ** -0.5)


def _weighted(weights: Tensor, v: Tensor) -> Tensor:
    """[B * heads, N, L] and [B, heads, L, d] -> [B, heads, N, d]."""
    return torch.bmm(weights, v.flatten(0, 1)).unflatten(0, v.shape[:2])


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
        with own_precision(x):
            return F.layer_norm(x, self.weight.shape, self.weight if mixed else self.weight.to(x.dtype), None, 1e-6)


class Attention(TimmAttention):
    """Multi-head self-attention [B, N, D] -> [B, N, D] around any function of (q, k, v).

    Args:
        core: an entry of `ATTENTIONS`, or a user's function of (q, k, v).
        alpha: exponent of the length, or "learned": one scalar per block, 1 at first.
        length: L of the factor L^-alpha. "tokens": the keys at hand, so those of the window in a windowed block;
            "image": the tokens of the whole image, told to `forward` by whoever cuts windows; "train": `train_tokens`.
        gate: multiply the heads' outputs by sigmoid(a projection of the input). The paper (section 4) does not name the
            gate's activation; this is timm's.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        core: Callable[..., Tensor],
        *,
        qk_norm: bool = False,
        gate: bool = False,
        alpha: float | str = 1.0,
        length: str = "tokens",
        train_tokens: int | None = None,
    ) -> None:
        super().__init__(dim, heads, qkv_bias=True, qk_norm=qk_norm, gated=gate, norm_layer=HeadNorm)
        self.core = core
        self.shards: Shards | None = None
        self.length = length
        self.train_tokens = train_tokens
        self.alpha: float | nn.Parameter
        self.alpha = nn.Parameter(torch.tensor(1.0)) if isinstance(alpha, str) else alpha

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, image_tokens: int | None = None
    ) -> Tensor:
        """`image_tokens`: the number of tokens of the whole image, where x holds only those of a window."""
        if attn_mask is not None or is_causal:
            raise ValueError("attention masks are not supported")
        B, N, _ = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        core, tokens = self.core, N
        if self.training and self.shards is not None and self.shards.tokens is not None:  # x is this rank's share
            core, tokens = self.shards.over_ranks(core), self.shards.tokens
        out = core(self.q_norm(q), self.k_norm(k), v, alpha=self.alpha, length=self.counted(tokens, image_tokens))
        out = out.transpose(1, 2).reshape(B, N, self.attn_dim)
        if self.gate is not None:
            out = out * self.gate(x).sigmoid()
        return self.proj(out)

    def counted(self, tokens: int, image_tokens: int | None = None) -> int | None:
        """L of the factor L^-alpha, for so many keys at hand; see `forward` for the other."""
        return {"tokens": tokens, "image": image_tokens or tokens, "train": self.train_tokens}[self.length]

    @property
    def scaled(self) -> bool:
        """Whether L matters: not where the weights are divided by their sum."""
        return getattr(self.core, "func", None) is pointwise

    def operations(self, images: int, tokens: int) -> int | None:
        """Of the products with the weights, in the order that is the cheaper; a multiply-add is two.

        None for a user's function, of which nobody knows.
        """
        own, d = getattr(self.core, "operations", None), self.head_dim
        if own is not None:
            return int(own(images * self.num_heads, tokens))
        if self.core not in ATTENTIONS.values():
            return None
        linear = self.core is ATTENTIONS["identity"] and linear_is_cheaper(tokens, tokens, d)
        return 4 * images * self.num_heads * tokens * d * (d if linear else tokens)


class UserAttention(nn.Module):
    """A user's `Name(dim, heads)`, called the way timm's block calls an attention."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, image_tokens: int | None = None
    ) -> Tensor:
        return self.body(x)


def make_attention(name: str, dim: int, heads: int, *, alpha: float | str = 1.0, **options: Any) -> nn.Module:
    """The attention of one block: an entry of `ATTENTIONS`, or a user's `file.py:Name`.

    The user's is a function (q, k, v) -> [B, heads, N, d] or a class `Name(dim, heads)` mapping [B, N, D] -> [B, N, D].

    Raises:
        WrongWords: an unknown name, or an option that this attention does not take.
    """
    parts.check_name("attention", name)
    if not parts.is_user_part(name):
        core = ATTENTIONS[name]
        if alpha != 1 and (core is softmax or name.endswith("_sum")):
            raise WrongWords(f"`alpha: {alpha}` has no effect on the attention '{name}', whose weights sum to 1")
        return Attention(dim, heads, core, alpha=alpha, **options)
    if alpha != 1:
        raise WrongWords(f"`alpha: {alpha}` has no effect on a user's attention ({name})")
    found = parts.load(name)
    if not isinstance(found, type):
        return Attention(dim, heads, lambda q, k, v, **_: found(q, k, v), **options)
    body = found(dim, heads)
    if not isinstance(body, nn.Module):
        raise UserError(f"{name}: an attention is an nn.Module class Name(dim, heads) or a function (q, k, v)")
    if options.get("gate") or options.get("qk_norm"):
        raise WrongWords(f"{name} is a module of its own: `gate` and `qk_norm` do not reach into it")
    return UserAttention(body)
