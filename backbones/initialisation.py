"""How parts are made and filled: on which device, in which type, and with which values."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones import user_code
from backbones.errors import UserError

_TRUNCATED = 0.87962566103423978
"standard deviation of the normal distribution cut off at 2 of its own"


Part = TypeVar("Part", bound=nn.Module)


def make_on(device: Any, dtype: torch.dtype | None, make: Callable[[], Part]) -> Part:
    """Return what `make` returns, made on a device and brought to a floating-point type; None leaves torch's defaults.

    Parts need not know of either: users' stems, attentions and FFNs take none of the two.
    """
    with nullcontext() if device is None else torch.device(device):
        part = make()
    return part.to(device=device, dtype=dtype)


def make_users(text: str, form: str, *arguments: Any, in_chans: int = 3) -> nn.Module:
    """Return what a user's class or function `file.py:Name` makes of these arguments.

    Args:
        form: what it has to be, for the error.
        in_chans: given on where it is not 3 and is taken; else the module's own channels must be these.

    Raises:
        UserError: it is no module.
    """
    source = user_code.load(text)
    taken = in_chans != 3 and "in_chans" in inspect.signature(source).parameters
    made = source(*arguments, in_chans=in_chans) if taken else source(*arguments)
    if not isinstance(made, nn.Module):
        raise UserError(f"{text}: {form} is an nn.Module class; this returned {type(made).__name__}")
    return made


def reset_parts(model: nn.Module) -> None:
    """Give every module with `reset_parameters` the values of its class, norms' running statistics included."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()


def lecun_normal_(weight: Tensor) -> None:
    """Fill with a truncated normal whose standard deviation, after the cut, is 1 / sqrt(fan-in)."""
    std = weight[0].numel() ** -0.5 / _TRUNCATED
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def big_vision(model: VisionTransformer) -> None:
    """Initialise a ViT as big_vision's models/vit.py does, and as flax does where that says nothing.

    Dense layers of the blocks are Glorot-uniform, biases of FFNs N(0, 1e-6), positions N(0, 1 / sqrt(D)). Convolutions
    of the stem and the layer behind the pooling are LeCun-normal; classifier, class token, and all other biases zero.
    Users' parts within get the same.
    """
    if model.cls_token is not None:
        nn.init.zeros_(model.cls_token)
    if model.pos_embed is not None:
        nn.init.normal_(model.pos_embed, std=model.embed_dim**-0.5)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            _init_weight(name, module.weight)
            if module.bias is not None and ".mlp." in name:
                nn.init.normal_(module.bias, std=1e-6)
            elif module.bias is not None:
                nn.init.zeros_(module.bias)


def _init_weight(name: str, weight: Tensor) -> None:
    if name == "head":
        nn.init.zeros_(weight)
    elif not name.startswith("blocks."):
        lecun_normal_(weight)
    elif name.endswith(".attn.qkv"):
        for part in weight.chunk(3):  # queries, keys and values are layers of their own there, with D outputs each
            nn.init.xavier_uniform_(part)
    else:
        nn.init.xavier_uniform_(weight)
