"""How parts are made, and with which values they are filled."""

import inspect
from functools import partial
from typing import Any

import timm
import torch
from timm.layers import trunc_normal_
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones.archs import default_fields
from backbones.spec import BackboneSpec, check_size
from transfer.core import user_code
from transfer.core.errors import UsageError, UserError

_TRUNCATED = 0.87962566103423978
"standard deviation of the normal distribution cut off at 2 of its own"


CONTRACTS = {
    "stem": (("dim", "patch"), "images [B, 3, H, W] to maps [B, dim, H / patch, W / patch]"),
    "attention": (("dim", "heads"), "tokens [B, N, dim] to tokens [B, N, dim]"),
    "attention core": (("heads", "head_dim"), "q, k, v [B, heads, N, head_dim] to [B, heads, N, head_dim]"),
    "attention function": (("q", "k", "v"), "q, k, v [B, heads, N, head_dim] to [B, heads, N, head_dim]"),
    "ffn": (("dim", "hidden"), "tokens [B, N, dim] to tokens [B, N, dim]"),
    "arch": ((), "images [B, 3, H, W] to features [B, D]"),
}
"""What each kind of user's part is called with, and what it maps to what; docs/adding-a-part.md shows an example of
each."""
_ATTENTIONS = (
    "an attention is a function (q, k, v), a class (heads, head_dim) with forward(q, k, v), "
    "or a class (dim, heads) with forward(tokens)"
)


def contract(part: str, text: str) -> str:
    """Return what a user's part `text` must accept and compute, for an error; `part` is a key of `CONTRACTS`."""
    names, maps = CONTRACTS[part]
    return f"{user_code.place(text)}: must accept ({', '.join(names)}) and map {maps}"


def forward_of(part: Any) -> Any:
    """Return the method of a module or class that its call ends in, and a function as it is."""
    return getattr(part, "forward", part)


def attention_kind(text: str) -> tuple[str, Any]:
    """Return the kind of a user's attention, a key of `CONTRACTS`, and the class or function itself.

    A class is a core where its `forward` takes three arguments, and not one alone.

    Raises:
        UsageError: it is of none of these kinds.
    """
    part = user_code.load_part(text)
    if not isinstance(part, type):
        check_signature("attention function", text, part)
        return "attention function", part
    forward = inspect.signature(forward_of(part))
    if _binds(forward, part, "tokens"):
        return "attention", part
    if not _binds(forward, part, "q", "k", "v"):
        raise UsageError(f"{user_code.place(text)}: {_ATTENTIONS}; got forward{forward}")
    return "attention core", part


def _binds(signature: inspect.Signature, *arguments: Any) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def check_signature(part: str, text: str, source: Any) -> None:
    """Raise UsageError unless a user's class or function can be called as the contract of the part says.

    A name of the contract in another place than there would get another argument's value.
    """
    if isinstance(source, nn.Module):
        raise UsageError(f"{user_code.place(text)}: a module, which all blocks would share; name its class")
    try:
        signature = inspect.signature(source)
    except (TypeError, ValueError):  # something compiled has no signature
        return
    names, parameters = CONTRACTS[part][0], list(signature.parameters)
    moved = any(parameters.index(name) != place for place, name in enumerate(names) if name in parameters)
    if moved or not _binds(signature, *names):
        kinds = f" ({_ATTENTIONS})" if part.startswith("attention") else ""
        raise UsageError(f"{contract(part, text)}{kinds}; got ({', '.join(parameters)})")


def _keeps_shape(part: str, text: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """Raise UserError unless a user's part returned as many tokens as it got: a forward hook of the part's module."""
    if getattr(output, "shape", None) != inputs[0].shape:
        raise UserError(f"{contract(part, text)}; got {shape_or_type(output)} for {shape_or_type(inputs[0])}")


def shape_or_type(value: Any) -> str:
    """Return the shape of a tensor, or the type of anything else."""
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def make_ours(spec: BackboneSpec, size: tuple[int, int]) -> Any:
    """Return a model of our own for images (H, W) in pixels. Raises UsageError if its patches do not divide them."""
    check_size(spec, size)
    options = {key: getattr(spec, key) for key in ("in_chans", *default_fields(spec.arch)) if key != "patch"}
    options |= {"num_classes": 0, "patch_size": spec.patch, "img_size": size, "drop_path_rate": spec.drop_path}
    return timm.create_model(spec.arch, **options)


def make_users_model(text: str, in_chans: int) -> Any:
    """Return a user's whole model `file.py:Name` without its classifier. Raises the errors of `make_users`."""
    model: Any = make_users("arch", text, in_chans=in_chans)
    if hasattr(model, "reset_classifier"):
        model.reset_classifier(0)
    return model


def make_users(part: str, text: str, *arguments: Any, in_chans: int = 3) -> nn.Module:
    """Return what a user's class or function `file.py:Name` makes of these arguments.

    Args:
        part: a key of `CONTRACTS`.
        text: the located class or function.
        in_chans: given on where it is not 3 and is taken; else the module's own channels must be these.

    Raises:
        UsageError: it does not take these arguments.
        UserError: it returns no module.
    """
    source = user_code.load_part(text)
    check_signature(part, text, source)
    taken = in_chans != 3 and "in_chans" in inspect.signature(source).parameters
    module = source(*arguments, in_chans=in_chans) if taken else source(*arguments)
    if not isinstance(module, nn.Module):
        raise UserError(f"{user_code.place(text)}: must return an nn.Module, got {shape_or_type(module)}")
    if part in ("attention", "ffn"):
        module.register_forward_hook(partial(_keeps_shape, part, text))
    return module.to(torch.get_default_device())  # where all else is made; the model is moved when it has its weights


def lecun_normal_(weight: Tensor) -> None:
    """Fill with a truncated normal whose standard deviation, after the cut, is 1 / sqrt(fan-in)."""
    std = weight[0].numel() ** -0.5 / _TRUNCATED
    trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


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
