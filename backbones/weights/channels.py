"""Weights of RGB images for a model of other channels."""

from typing import Any

from timm.models._manipulate import adapt_input_conv
from torch import Tensor


def fit_channels(state: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return weights of RGB images with their first convolution for the channels that the model takes, as timm has it.

    One channel gets the sum over RGB; others get RGB over and over, scaled to the same sum. Weights of as many channels
    as the model's are left as they are.

    Args:
        state: tensors by the model's names.
        model: its `pretrained_cfg` names the convolution; the weights of a model without fit as they are or not at all.
    """
    layers = getattr(model, "pretrained_cfg", {}).get("first_conv") or ()
    own = dict(model.named_parameters())
    for name in (f"{layer}.weight" for layer in ([layers] if isinstance(layers, str) else layers)):
        if name in state and name in own and state[name].ndim == 4 and state[name].shape[1] == 3:
            state = state | {name: adapt_input_conv(own[name].shape[1], state[name])}
    return state
