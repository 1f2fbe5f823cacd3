"""The values that a backbone's fields can have. Imports no torch."""

import math
from typing import Any

from backbones import user_code
from backbones.archs import ARCHS, timm_names
from backbones.errors import UsageError, did_you_mean
from backbones.stems import find_stem

_CHOICES = {
    "pool": ("cls", "gap", "mean"),
    "pos": ("learned", "sincos2d"),
    "pos_embed_interp": ("antialias", "bicubic", "dino", "bilinear", "corners"),
    "init": ("deit", "bigvision"),
    "length": ("tokens", "image", "train"),
    "gate": ("off", "sigmoid", "silu", "linear"),
    "load": ("strict", "partial"),
}
_FLAGS = ("qk_norm", "pre_logits", "cls_pos_embed", "allow_dropped")


def parse_field(key: str, value: Any) -> Any:
    """Return the value of one field in its proper type.

    Raises:
        UsageError: with the values that there are.
        TypeError, ValueError: it cannot be read at all.
    """
    if key in _CHOICES and value not in _CHOICES[key]:
        raise UsageError(f"`{key}: {value}` must be one of {', '.join(_CHOICES[key])}")
    if key in (*user_code.USER_PARTS, "weights"):
        if not isinstance(value, str):
            raise ValueError
        if not user_code.is_user_part(value):
            _check_known(key, value)
        return value
    if key in ("mean", "std"):
        of_channels = tuple(_finite(number) for number in value)
        if key == "std" and min(of_channels) <= 0:
            raise UsageError(f"`std: {value}`: must be positive")
        return of_channels
    if key in ("train_size", "weights_size"):
        height, width = (value, value) if isinstance(value, int) else value
        return (int(height), int(width))
    if key in _FLAGS and not isinstance(value, bool):
        raise ValueError
    if key == "drop_path" or (key == "alpha" and value != "learned"):
        return _finite(value)
    if key in ("patch", "depth", "in_chans"):
        if isinstance(value, bool) or int(value) != float(value) or int(value) < 1:
            raise ValueError
        return int(value)
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _check_known(part: str, text: str) -> None:
    if text.endswith(".py") and part != "weights":
        user_code.locate(f"{text}:")
    if part == "stem":
        find_stem(text)
    elif part == "arch" and text not in ARCHS and text.split(".")[0] not in timm_names():
        raise UsageError(f"unknown architecture '{text}'{did_you_mean(text, [*ARCHS, *timm_names()])}")
    elif part in ("attention", "ffn"):
        user_code.check_name(part, text)
